// This process: its variables, memory that grows, standard input and output.
#pragma once

#define SIZE_OF(text) (sizeof(text) - 1)

enum { FIRST_ROOM = 65536 };

struct process {
    int argument_count;
    char **arguments, **environment;
    const char *file; // as the kernel executed it
};

struct buffer {
    unsigned char *bytes;
    size_t size, room;
};

// The value of an environment variable, or NULL. If it occurs more than once, the first counts, as with getenv().
static const char *variable(const struct process *process, const char *name, size_t name_size)
{
    for (char **entry = process->environment; *entry != NULL; entry++) {
        size_t i = 0;
        while (i < name_size && (*entry)[i] == name[i]) i++;
        if (i == name_size && (*entry)[i] == '=') return *entry + i + 1;
    }
    return NULL;
}

#define VARIABLE(process, name) variable(process, name, SIZE_OF(name))

// Make room for ``more`` bytes after those in the buffer.
static bool reserve(struct buffer *buffer, size_t more)
{
    if (more <= buffer->room - buffer->size) return true;
    size_t room = buffer->room < FIRST_ROOM ? FIRST_ROOM : buffer->room;
    while (room - buffer->size < more) {
        if (room > SIZE_MAX / 4) return false;
        room *= 2;
    }
    unsigned char *bytes = allocate(room);
    if (bytes == NULL) return false;
    if (buffer->bytes != NULL) {
        memcpy(bytes, buffer->bytes, buffer->size);
        release(buffer->bytes, buffer->room);
    }
    buffer->bytes = bytes;
    buffer->room = room;
    return true;
}

// The caller must have reserved the room.
static void append(struct buffer *buffer, const void *bytes, size_t size)
{
    memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

static void append_number(struct buffer *buffer, size_t number)
{
    const unsigned char bytes[4] = {
        (unsigned char)(number >> 24), (unsigned char)(number >> 16), (unsigned char)(number >> 8), (unsigned char)number};
    append(buffer, bytes, sizeof bytes);
}

// If the caller closed standard input, output or error, a placeholder takes its number. Using that number then fails,
// and our socket cannot get it. The placeholder is closed when Python is executed, so Python finds it closed.
static void occupy_standard_descriptors(void)
{
    long descriptor;
    do descriptor = CALL(openat, AT_FDCWD, "/", O_PATH | O_CLOEXEC);
    while (descriptor >= 0 && descriptor <= 2);
    if (descriptor > 2) CALL(close, descriptor);
}

// Wait without a limit. This is needed because a runtime may have made its pipe non-blocking.
static void await_descriptor(int descriptor, short events)
{
    struct pollfd waiting = {.fd = descriptor, .events = events};
    CALL(ppoll, &waiting, 1, NULL, NULL, 0);
}

// Read all of standard input; false if it cannot be read to its end.
static bool read_input(struct buffer *input)
{
    for (;;) {
        if (!reserve(input, FIRST_ROOM / 2)) return false;
        long got = CALL(read, 0, input->bytes + input->size, input->room - input->size);
        if (got == 0) return true;
        if (got > 0) input->size += (size_t)got;
        else if (got == -EAGAIN) await_descriptor(0, POLLIN);
        else return false;
    }
}

static bool write_all(int descriptor, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        long wrote = CALL(write, descriptor, (const char *)bytes + done, size - done);
        if (wrote >= 0) done += (size_t)wrote;
        else if (wrote == -EAGAIN) await_descriptor(descriptor, POLLOUT);
        else return false;
    }
    return true;
}

// Returns the exit status. If the answer cannot be written, that is a failure, whatever the answer says.
static int write_output(const void *bytes, size_t size, int status)
{
    const struct signal_action ignore = {.handler = 1};
    CALL(rt_sigaction, SIGNAL_PIPE, &ignore, NULL, sizeof ignore.mask);
    return write_all(1, bytes, size) ? status : 1;
}
