// One call to the resident server; see docs/protocol.md for what is sent and what may come back.
//
// Rule: nothing is sent to a server of another user, and no wait is longer than the patience.
// NOBODY: no server carries out the call, so Python must.
// STUCK: the patience ran out. Python must carry out the call, although a server may still be working on it.
// ANSWERED: the server has answered.
#pragma once

enum { DESCRIPTORS_MAX = 3 };

enum outcome { NOBODY, STUCK, ANSWERED };

struct server {
    int connection;
    uint64_t deadline_ms;
};

static uint64_t now_ms(void)
{
    struct __kernel_timespec now = {0};
    CALL(clock_gettime, CLOCK_OF_DEADLINES, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// CALICO_CNI_PATIENCE_S, a decimal number of seconds such as 75 or 0.5; anything else means the default.
static uint64_t patience_ms(const struct process *process)
{
    const char *text = VARIABLE(process, PATIENCE_VARIABLE);
    uint64_t ms = 0, digits = 0, unit = 1000;
    if (text == NULL) return PATIENCE_MS;
    for (; *text >= '0' && *text <= '9' && digits < 7; text++, digits++) ms = ms * 10 + (uint64_t)(*text - '0') * 1000;
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9' && digits < 16; text++, digits++) {
            unit /= 10;
            ms += (uint64_t)(*text - '0') * unit;
        }
    if (digits == 0 || *text != 0) return PATIENCE_MS;
    return ms < PATIENCE_MIN_MS ? PATIENCE_MIN_MS : ms;
}

// Find the server's socket. Returns false if there is none, or if its path is too long.
static bool find_socket(const struct process *process, struct sockaddr_un *address)
{
    static const char name[] = "/" SOCKET_NAME;
    const char *directory = VARIABLE(process, RUN_DIRECTORY_VARIABLE);
    if (directory == NULL || *directory == 0) directory = RUN_DIRECTORY;
    size_t size = strlen(directory);
    if (size + sizeof name > sizeof address->sun_path) return false;
    *address = (struct sockaddr_un){.sun_family = SOCKET_UNIX};
    memcpy(address->sun_path, directory, size);
    memcpy(address->sun_path + size, name, sizeof name);
    return CALL(faccessat, AT_FDCWD, address->sun_path, CHECK_EXISTENCE) == 0;
}

// Connect to a server that runs as root or as our own user. Returns -1 if there is none, or if another user's process
// listens instead.
static int connect_to(const struct sockaddr_un *address)
{
    long connection = CALL(socket, SOCKET_UNIX, SOCKET_STREAM | SOCKET_CLOEXEC, 0);
    if (connection < 0) return -1;
    const struct __kernel_timespec patience = {.tv_sec = CONNECT_S};
    struct peer peer = {0};
    unsigned size = sizeof peer;
    CALL(setsockopt, connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (CALL(connect, connection, address, sizeof *address) == 0 &&
        CALL(getsockopt, connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && size == sizeof peer &&
        (peer.uid == 0 || peer.uid == (unsigned)CALL(geteuid)))
        return (int)connection;
    CALL(close, connection);
    return -1;
}

// Wait for the server. Returns false if the patience has run out.
static bool await_server(const struct server *server, short events)
{
    uint64_t now = now_ms();
    if (now >= server->deadline_ms) return false;
    uint64_t left = server->deadline_ms - now;
    struct __kernel_timespec limit = {
        .tv_sec = (long long)(left / 1000), .tv_nsec = (long long)(left % 1000) * 1000000};
    struct pollfd waiting = {.fd = server->connection, .events = events};
    return CALL(ppoll, &waiting, 1, &limit, NULL, 0) != 0;
}

struct descriptors {
    int numbers[DESCRIPTORS_MAX];
    size_t count;
    const char *names;
};

// Open what the server may be unable to open itself. Returns false if the root directory or the mount namespace cannot
// be opened: without them the server does not see the host's files as this process does.
static bool open_descriptors(const struct process *process, struct descriptors *opened)
{
    const char *netns = VARIABLE(process, "CNI_NETNS");
    opened->count = 0;
    opened->names = NAMES_WITHOUT_NETNS;
    if (netns != NULL && *netns != 0) {
        long found = CALL(openat, AT_FDCWD, netns, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (found >= 0) { // if it cannot be opened, the server reports the error with the path
            opened->numbers[opened->count++] = (int)found;
            opened->names = NAMES_WITH_NETNS;
        }
    }
    long root = CALL(openat, AT_FDCWD, "/", O_PATH | O_CLOEXEC);
    if (root >= 0) opened->numbers[opened->count++] = (int)root;
    long mounts = CALL(openat, AT_FDCWD, "/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (mounts >= 0) opened->numbers[opened->count++] = (int)mounts;
    return root >= 0 && mounts >= 0;
}

static void close_descriptors(const struct descriptors *opened)
{
    for (size_t i = 0; i < opened->count; i++) CALL(close, opened->numbers[i]);
}

// Write the frame up to and including the input's length. Returns false if the body is too large or memory is short.
static bool write_head(const struct process *process, size_t input, const char *names, struct buffer *head)
{
    static const char variables[] = VARIABLES;
    size_t environment = 0;
    for (const char *name = variables; *name != 0; name += strlen(name) + 1) {
        const char *value = variable(process, name, strlen(name));
        if (value != NULL) environment += strlen(name) + 1 + strlen(value) + 1;
    }
    if (environment > 0) environment--; // zero bytes separate the variables
    size_t body = 4 + SIZE_OF(EXECUTABLE) + 4 + environment + 4 + input + 4 + strlen(names);
    if (input > BODY_MAX || body > BODY_MAX || !reserve(head, HEADER_BYTES + body - input)) return false;
    append(head, FRAME_MAGIC, 3);
    append(head, &(const unsigned char){PROTOCOL_VERSION}, 1);
    append_number(head, body);
    append_number(head, SIZE_OF(EXECUTABLE));
    append(head, EXECUTABLE, SIZE_OF(EXECUTABLE));
    append_number(head, environment);
    bool first = true;
    for (const char *name = variables; *name != 0; name += strlen(name) + 1) {
        const char *value = variable(process, name, strlen(name));
        if (value == NULL) continue;
        if (!first) append(head, "", 1);
        first = false;
        append(head, name, strlen(name));
        append(head, "=", 1);
        append(head, value, strlen(value));
    }
    append_number(head, input);
    return true;
}

// Returns ANSWERED if all was sent, and also if the server has closed its end: it may have sent an answer before.
static enum outcome send_request(const struct server *server, struct iovec *parts, size_t count,
                                 const struct descriptors *opened)
{
    struct {
        struct control_header header;
        int descriptors[DESCRIPTORS_MAX];
    } control = {.header = {sizeof control.header + opened->count * sizeof(int), SOL_SOCKET, SCM_DESCRIPTORS}};
    memcpy(control.descriptors, opened->numbers, opened->count * sizeof(int));
    struct message message = {.parts = parts, .part_count = count, .control = &control};
    message.control_size = control.header.size;
    while (message.part_count > 0) {
        long sent = CALL(sendmsg, server->connection, &message, SEND_NO_SIGNAL | DO_NOT_WAIT);
        if (sent == -EPIPE || sent == -ECONNRESET) return ANSWERED;
        if (sent < 0 && sent != -EAGAIN) return NOBODY;
        if (sent > 0) { // the descriptors were sent with the first bytes
            message.control = NULL;
            message.control_size = 0;
        }
        for (size_t left = sent > 0 ? (size_t)sent : 0; message.part_count > 0;) {
            struct iovec *part = message.parts;
            size_t step = left < part->iov_len ? left : part->iov_len;
            part->iov_base = (char *)part->iov_base + step;
            part->iov_len -= step;
            left -= step;
            if (part->iov_len > 0) break;
            message.parts++;
            message.part_count--;
        }
        if (message.part_count > 0 && !await_server(server, POLLOUT)) return STUCK;
    }
    return ANSWERED;
}

// Returns ANSWERED if a whole frame with an answer has arrived. Bytes after it are ignored.
static enum outcome receive_answer(const struct server *server, struct buffer *frame, struct answer *answer)
{
    size_t whole = 0;
    while (whole == 0 || frame->size < whole) {
        if (!reserve(frame, whole == 0 ? FIRST_ROOM / 2 : whole - frame->size)) return NOBODY;
        if (!await_server(server, POLLIN)) return STUCK;
        size_t wanted = whole == 0 ? frame->room - frame->size : whole - frame->size;
        long got = CALL(read, server->connection, frame->bytes + frame->size, wanted);
        if (got == -EAGAIN) continue;
        if (got <= 0) return NOBODY;
        frame->size += (size_t)got;
        if (whole == 0 && frame->size >= HEADER_BYTES) {
            whole = frame_size(frame->bytes);
            if (whole == 0) return NOBODY;
        }
    }
    if (!parse_answer(frame->bytes, whole, answer)) return NOBODY;
    // a server of the release before refuses requests of this protocol version
    return answer->version == PROTOCOL_VERSION - 1 ? NOBODY : ANSWERED;
}

static enum outcome exchange(const struct process *process, const struct buffer *input,
                             const struct descriptors *opened, struct server *server, struct answer *answer)
{
    struct buffer head = {0}, frame = {0};
    unsigned char names[4 + sizeof NAMES_WITH_NETNS] = {0, 0, 0, (unsigned char)strlen(opened->names)};
    memcpy(names + 4, opened->names, strlen(opened->names));
    if (!write_head(process, input->size, opened->names, &head)) return NOBODY;
    struct iovec parts[] = {
        {head.bytes, head.size},
        {input->bytes, input->size},
        {names, 4 + strlen(opened->names)},
    };
    enum outcome sent = send_request(server, parts, sizeof parts / sizeof *parts, opened);
    return sent == ANSWERED ? receive_answer(server, &frame, answer) : sent;
}

static enum outcome call_server(const struct process *process, const struct sockaddr_un *address,
                                const struct buffer *input, struct answer *answer)
{
    struct server server = {.connection = connect_to(address)};
    if (server.connection < 0) return NOBODY;
    server.deadline_ms = now_ms() + patience_ms(process);
    struct descriptors opened;
    enum outcome outcome = NOBODY;
    if (open_descriptors(process, &opened)) outcome = exchange(process, input, &opened, &server, answer);
    close_descriptors(&opened);
    CALL(close, server.connection);
    return outcome;
}
