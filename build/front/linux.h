// What this program needs of a C library: system calls, memory, and the first instruction of the process.
//
// Rule: nothing of the host's C library is used, so the program starts on any host. The numbers and structures
// that the kernel's own headers leave to C libraries are defined here; they are the same on x86-64 and arm64.
// HOSTED: the same program over a C library, for the sanitizers, which need one.
#pragma once

#include <asm/poll.h>
#include <asm/socket.h>
#include <asm/unistd.h>
#include <linux/auxvec.h>
#include <linux/errno.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/time_types.h>
#include <linux/uio.h>
#include <linux/un.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SOCKET_UNIX = 1, SOCKET_STREAM = 1, SOCKET_CLOEXEC = O_CLOEXEC,
    SCM_DESCRIPTORS = 1,
    SEND_NO_SIGNAL = 0x4000, DO_NOT_WAIT = 0x40,
    MEMORY_FILE_CLOEXEC = 1, SET_PIPE_SIZE = F_LINUX_SPECIFIC_BASE + 7,
    CLOCK_OF_DEADLINES = 1, SIGNAL_PIPE = 13, CHECK_EXISTENCE = 0,
};

struct message {
    void *name;
    int name_size;
    struct iovec *parts;
    size_t part_count;
    void *control;
    size_t control_size;
    unsigned flags;
};

struct control_header {
    size_t size;
    int level, type;
};

struct peer {
    int pid;
    unsigned uid, gid;
};

struct signal_action {
    unsigned long handler, flags, restorer, mask;
};

#ifdef HOSTED

#include <stdlib.h>
#include <string.h>

extern int *__errno_location(void);
extern long syscall(long number, ...);
extern unsigned long getauxval(unsigned long type);

// -errno on failure, like the kernel.
static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    long result = syscall(number, a, b, c, d, e, f);
    return result == -1 ? -(long)*__errno_location() : result;
}

static inline void *allocate(size_t size)
{
    return malloc(size);
}

static inline void release(void *memory, size_t size)
{
    (void)size;
    free(memory);
}

#else

#if defined __x86_64__

static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

__asm__(".globl _start\n"
        "_start:\n"
        "    xor %ebp, %ebp\n"
        "    mov %rsp, %rdi\n"
        "    and $-16, %rsp\n"
        "    call begin\n"
        "    hlt\n");

#elif defined __aarch64__

static inline long call6(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc #0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}

__asm__(".globl _start\n"
        "_start:\n"
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x0, sp\n"
        "    bl begin\n"
        "    brk #1\n");

#else
#error "written for x86-64 and arm64"
#endif

// The compiler calls these three by name.
void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
    char *t = to;
    for (const char *f = from; size != 0; size--) *t++ = *f++;
    return to;
}

void *memset(void *to, int value, size_t size)
{
    for (char *t = to; size != 0; size--) *t++ = (char)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t size)
{
    const unsigned char *a = one, *b = other;
    for (; size != 0; size--, a++, b++)
        if (*a != *b) return *a < *b ? -1 : 1;
    return 0;
}

static inline size_t strlen(const char *text)
{
    size_t length = 0;
    while (text[length] != 0) length++;
    return length;
}

// Zeroed memory; NULL if there is none.
static inline void *allocate(size_t size)
{
    long result = call6(__NR_mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return result < 0 && result > -4096 ? NULL : (void *)result;
}

static inline void release(void *memory, size_t size)
{
    call6(__NR_munmap, (long)memory, (long)size, 0, 0, 0, 0);
}

#endif

// A system call with up to five arguments; repeated if a signal interrupted it.
#define CALL(...) CALL_OF(__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define CALL_OF(number, a, b, c, d, e, ...) repeated(__NR_##number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

static inline long repeated(long number, long a, long b, long c, long d, long e)
{
    long result;
    do result = call6(number, a, b, c, d, e, 0);
    while (result == -EINTR);
    return result;
}
