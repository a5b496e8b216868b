// Executes the Python executable beside this file. That happens for everything except calls that a server answers.
//
// Rule: Python gets the arguments, the environment and the input as this program got them, and one more argument that
// says how far this program got. If Python cannot be executed, this program answers with its only error message.
#pragma once

enum { PATH_SIZE = 4096, LINKS_MAX = 40 };

// The size of a path's directory, with the slash.
static size_t directory_size(const char *path)
{
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] != '/') size--;
    return size;
}

// Symbolic links to this file are followed, because Python is beside the file itself. Returns false if the path is too
// long.
static bool find_python(const char *file, char path[PATH_SIZE])
{
    static const char name[] = EXECUTABLE ".python";
    size_t size = strlen(file);
    if (size >= PATH_SIZE) return false;
    memcpy(path, file, size + 1);
    for (int links = 0; links < LINKS_MAX; links++) {
        char target[PATH_SIZE];
        long got = CALL(readlinkat, AT_FDCWD, path, target, sizeof target - 1);
        if (got <= 0) break;
        size_t directory = target[0] == '/' ? 0 : directory_size(path);
        if (directory + (size_t)got >= PATH_SIZE) return false;
        memcpy(path + directory, target, (size_t)got);
        path[directory + (size_t)got] = 0;
    }
    size_t directory = directory_size(path);
    if (directory + sizeof name > PATH_SIZE) return false;
    memcpy(path + directory, name, sizeof name);
    return true;
}

// Make standard input start again with what has been read of it.
static bool give_back(const struct buffer *input)
{
    long descriptor = CALL(memfd_create, "input", MEMORY_FILE_CLOEXEC);
    if (descriptor >= 0) {
        if (!write_all((int)descriptor, input->bytes, input->size)) return false;
        if (CALL(lseek, descriptor, 0, 0) != 0) return false;
        return CALL(dup3, descriptor, 0, 0) == 0;
    }
    // kernels before 3.17: a pipe that has room for all of it
    int ends[2];
    if (CALL(pipe2, ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    CALL(fcntl, ends[1], SET_PIPE_SIZE, input->size);
    for (size_t done = 0; done < input->size;) {
        long wrote = CALL(write, ends[1], input->bytes + done, input->size - done);
        if (wrote < 0) return false;
        done += (size_t)wrote;
    }
    CALL(close, ends[1]);
    CALL(fcntl, ends[0], F_SETFL, 0);
    return CALL(dup3, ends[0], 0, 0) == 0;
}

// Execute Python. Returns only if that failed, with the exit status. ``mode`` is the argument that says how far this
// program got.
static int become_python(const struct process *process, char *mode, const struct buffer *input)
{
    static const char failure[] = CANNOT_EXECUTE;
    char path[PATH_SIZE];
    if (find_python(process->file, path) && (input->size == 0 || give_back(input))) {
        char *called[] = {path, mode, NULL};
        char **arguments = called;
        if (process->argument_count > 1) {
            arguments = process->arguments;
            arguments[0] = path;
        }
        CALL(execve, path, arguments, process->environment);
    }
    return write_output(failure, SIZE_OF(failure), 1);
}
