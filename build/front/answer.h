// PURE: parses bytes that come from other programs: the server's answer and the runtime's VERSION request.
//
// Rule: no byte is trusted. Nothing is read outside the given size, and whatever is not exactly as in
// docs/protocol.md is refused, because the Python beside this program can judge it better.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer {
    unsigned version, exit_status;
    const unsigned char *output;
    size_t output_size;
};

static inline size_t big_endian(const unsigned char *bytes)
{
    return (size_t)bytes[0] << 24 | (size_t)bytes[1] << 16 | (size_t)bytes[2] << 8 | (size_t)bytes[3];
}

static inline bool same(const void *one, const char *text, size_t size)
{
    const char *bytes = one;
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != text[i]) return false;
    return true;
}

// The size of the whole frame that begins with these HEADER_BYTES. Returns 0 if it is not one of our frames.
static inline size_t frame_size(const unsigned char *header)
{
    if (!same(header, FRAME_MAGIC, 3)) return 0;
    size_t body = big_endian(header + 4);
    return body > BODY_MAX ? 0 : HEADER_BYTES + body;
}

static inline bool parse_status(const unsigned char *digits, size_t size, unsigned *status)
{
    unsigned value = 0;
    if (size < 1 || size > 3) return false;
    for (size_t i = 0; i < size; i++) {
        if (digits[i] < '0' || digits[i] > '9') return false;
        value = value * 10 + (digits[i] - (unsigned)'0');
    }
    *status = value;
    return value <= 255;
}

// Parse a whole frame. Its first two fields are the exit status and the output. Later releases may add fields.
static inline bool parse_answer(const unsigned char *frame, size_t size, struct answer *answer)
{
    if (size < HEADER_BYTES || frame_size(frame) != size) return false;
    answer->version = frame[3];
    size_t count = 0;
    for (size_t at = HEADER_BYTES; at < size; count++) {
        if (size - at < 4) return false;
        size_t length = big_endian(frame + at);
        at += 4;
        if (length > size - at) return false;
        if (count == 0 && !parse_status(frame + at, length, &answer->exit_status)) return false;
        if (count == 1) {
            answer->output = frame + at;
            answer->output_size = length;
        }
        at += length;
    }
    return count >= 2;
}

// The position of the text at or after ``at``; ``size`` if it is not found.
static inline size_t find(const unsigned char *bytes, size_t size, size_t at, const char *text, size_t length)
{
    for (; at < size && length <= size - at; at++)
        if (same(bytes + at, text, length)) return at;
    return size;
}

// The CNI version that a VERSION request names, as a text of SUPPORTED_VERSIONS; the newest if it names none; NULL if
// that is unclear: the key occurs twice, or is not directly followed by one of the supported values.
static inline const char *version_asked(const unsigned char *input, size_t size, size_t *length)
{
    static const char key[] = "\"cniVersion\"", versions[] = SUPPORTED_VERSIONS;
    const size_t key_size = sizeof key - 1;
    size_t at = find(input, size, 0, key, key_size);
    if (at == size) {
        *length = sizeof CURRENT_VERSION - 1;
        return CURRENT_VERSION;
    }
    at += key_size;
    if (find(input, size, at, key, key_size) != size) return NULL;
    while (at < size && (input[at] == ' ' || input[at] == ':')) at++;
    for (size_t begin = 0, end; begin < sizeof versions; begin = end + 1) {
        for (end = begin; versions[end] != ' ' && versions[end] != 0; end++) continue;
        size_t text = end - begin;
        if (size - at < text + 2 || input[at] != '"' || input[at + 1 + text] != '"') continue;
        if (!same(input + at + 1, versions + begin, text)) continue;
        *length = text;
        return versions + begin;
    }
    return NULL;
}
