// What the front makes of bytes, for a test that has an oracle: records on standard input (a letter, the size in four
// bytes, the bytes), a line for each on standard output. Each record lies in memory of exactly its size, so that the
// sanitizers see every byte that is read beside it.

#include "protocol.h"

#include "linux.h"

#include "process.h"

#include "answer.h"
#include "server.h"

#include <stdio.h>

static void judge_answer(const unsigned char *bytes, size_t size)
{
    size_t whole = size < HEADER_BYTES ? 0 : frame_size(bytes);
    struct answer answer = {0};
    if (whole == 0 || whole > size || !parse_answer(bytes, whole, &answer)) {
        puts("refused");
        return;
    }
    printf("%u %u ", answer.version, answer.exit_status);
    for (size_t i = 0; i < answer.output_size; i++) printf("%02x", answer.output[i]);
    puts("");
}

static void judge_version(const unsigned char *bytes, size_t size)
{
    size_t length = 0;
    const char *version = version_asked(bytes, size, &length);
    if (version == NULL) puts("refused");
    else printf("%.*s\n", (int)length, version);
}

static void judge_patience(const unsigned char *bytes, size_t size)
{
    char *entry = malloc(sizeof PATIENCE_VARIABLE + size + 1);
    memcpy(entry, PATIENCE_VARIABLE "=", sizeof PATIENCE_VARIABLE);
    memcpy(entry + sizeof PATIENCE_VARIABLE, bytes, size);
    entry[sizeof PATIENCE_VARIABLE + size] = 0;
    const struct process process = {.environment = (char *[]){entry, NULL}};
    printf("%llu\n", (unsigned long long)patience_ms(&process));
    free(entry);
}

int main(void)
{
    unsigned char head[5];
    while (fread(head, 1, sizeof head, stdin) == sizeof head) {
        size_t size = big_endian(head + 1);
        unsigned char *bytes = malloc(size);
        if (fread(bytes, 1, size, stdin) != size) return 1;
        switch (head[0]) {
        case 'a': judge_answer(bytes, size); break;
        case 'v': judge_version(bytes, size); break;
        case 'p': judge_patience(bytes, size); break;
        default: return 1;
        }
        free(bytes);
    }
    return 0;
}
