// calico and calico-ipam: pass the call to the resident server; if none answers, execute the Python beside this file.
//
// Rule: this program decides nothing that Python decides. It answers VERSION if the request is plain, passes on a
// server's answer, and leaves everything else (flags, no server, a server that hangs, dies or sends garbage) to
// calico.python or calico-ipam.python in its own directory, with the arguments, environment and input that it got.
//
// build/native.py generates protocol.h from the Python sources. The protocol: docs/protocol.md.

#include "protocol.h"

#include "linux.h"

#include "process.h"

#include "answer.h"
#include "python.h"
#include "server.h"

static int answer_version(const struct process *process, const struct buffer *input)
{
    struct buffer output = {0};
    size_t size;
    const char *version = version_asked(input->bytes, input->size, &size);
    if (version == NULL || !reserve(&output, SIZE_OF(VERSION_BEGIN) + size + SIZE_OF(VERSION_END)))
        return become_python(process, NULL, input);
    append(&output, VERSION_BEGIN, SIZE_OF(VERSION_BEGIN));
    append(&output, version, size);
    append(&output, VERSION_END, SIZE_OF(VERSION_END));
    return write_output(output.bytes, output.size, 0);
}

static int run(const struct process *process)
{
    struct buffer input = {0};
    struct sockaddr_un address;
    occupy_standard_descriptors();
    if (VARIABLE(process, "CALICO_START_CHECK") != NULL) return 0; // an installer asks whether this starts at all
    if (process->argument_count > 1) return become_python(process, NULL, &input);
    const char *command = VARIABLE(process, "CNI_COMMAND");
    if (command == NULL || *command == 0) return become_python(process, SERVE_HERE, &input);
    if (strlen(command) == SIZE_OF("VERSION") && same(command, "VERSION", SIZE_OF("VERSION")))
        return read_input(&input) ? answer_version(process, &input) : become_python(process, NULL, &input);
    if (!find_socket(process, &address) || !read_input(&input)) return become_python(process, SERVE_HERE, &input);
    struct answer answer = {0};
    switch (call_server(process, &address, &input, &answer)) {
    case ANSWERED:
        return write_output(answer.output, answer.output_size, (int)answer.exit_status);
    case STUCK: // the attachment's lock decides who continues
        return become_python(process, SERVE_HERE_STUCK, &input);
    default:
        return become_python(process, SERVE_HERE, &input);
    }
}

#ifdef HOSTED

int main(int count, char **arguments, char **environment)
{
    return run(&(struct process){count, arguments, environment, (const char *)getauxval(AT_EXECFN)});
}

#else

// The stack as the kernel sets it up: the arguments, their end, the environment, its end, the auxiliary vector.
__attribute__((used, noreturn)) void begin(long *stack)
{
    struct process process = {.argument_count = (int)stack[0], .arguments = (char **)stack + 1, .file = ""};
    process.environment = process.arguments + process.argument_count + 1;
    char **end = process.environment;
    while (*end != NULL) end++;
    for (const unsigned long *entry = (const unsigned long *)(end + 1); entry[0] != AT_NULL; entry += 2)
        if (entry[0] == AT_EXECFN) process.file = (const char *)entry[1];
    long status = run(&process);
    for (;;) CALL(exit_group, status);
}

#endif
