/* The heartbeat page (contract/local.py) in C: one process writes beats as fast as it can, another reads.

   twin READS: prints how many looks gave a beat, how many copies were refused as torn, and how many beats were
   wrong, that is, a mixture of two. Every other beat is stored word by word in an order of chance, which
   stands for machines that show stores in any order; the others as memmove does it. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { WORDS = 8, STEP = 1, HERE = 2, AT = 3, PHASE = 4, SAMPLES = 5, LAST = 6, SUM = 7 };
#define CHECKED (1ull << 63)

/* crc32 as zlib has it, eight bytes at a time: without tables as big the looks would be few. */
static uint32_t table[8][256];

static void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
        table[0][i] = c;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++) table[k][i] = table[0][table[k - 1][i] & 0xFF] ^ (table[k - 1][i] >> 8);
}

static uint64_t checksum(const uint64_t *record) {
    uint32_t c = 0xFFFFFFFFu;
    for (int i = 0; i < SUM; i++) {
        uint64_t word = record[i] ^ c;
        c = 0;
        for (int k = 0; k < 8; k++) c ^= table[7 - k][word >> (8 * k) & 0xFF];
    }
    return c ^ 0xFFFFFFFFu;
}

static uint64_t chance = 88172645463325252ull;

static uint64_t next_chance(void) {
    chance ^= chance << 13, chance ^= chance >> 7, chance ^= chance << 17;
    return chance;
}

/* All fields follow from the step, so a mixture shows. */
static void fill(uint64_t *record, uint64_t step) {
    double samples = (double)step * 8.0;
    record[0] = record[LAST] = step | CHECKED;
    record[STEP] = step;
    record[HERE] = step ^ 0x5555;
    record[AT] = step * 300007ull;
    record[PHASE] = 1 + step % 6;
    memcpy(&record[SAMPLES], &samples, sizeof samples);
}

static void *(*volatile move)(void *, const void *, size_t) = memmove;

static void write_copy(volatile uint64_t *place, const uint64_t *record, int whole) {
    if (whole) {
        move((void *)place, record, WORDS * 8);
        return;
    }
    int order[WORDS] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int i = WORDS - 1; i > 0; i--) {
        int j = next_chance() % (i + 1), word = order[i];
        order[i] = order[j], order[j] = word;
    }
    for (int i = 0; i < WORDS; i++) place[order[i]] = record[order[i]];
}

static void write_for_ever(volatile uint64_t *page) {
    uint64_t record[WORDS];
    for (uint64_t step = 1;; step++) {
        fill(record, step);
        record[SUM] = checksum(record);
        write_copy(page + WORDS, record, step & 1);
        write_copy(page, record, step & 1);
    }
}

static int read_copy(volatile uint64_t *place, uint64_t *record) {
    uint64_t end = place[LAST];
    __asm__ volatile("" ::: "memory");
    move(record, (const void *)place, WORDS * 8);
    __asm__ volatile("" ::: "memory");
    uint64_t begin = place[0];
    return end == begin && begin != 0 && record[0] == begin && record[LAST] == begin &&
           record[SUM] == checksum(record);
}

int main(int count, char **words) {
    uint64_t reads = count > 1 ? strtoull(words[1], NULL, 10) : 1000000, beats = 0, torn = 0, wrong = 0;
    uint64_t record[WORDS], good[WORDS];
    volatile uint64_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 2;
    make_tables();
    pid_t writer = fork();
    if (writer < 0) return 2;
    if (writer == 0) write_for_ever(page);
    while (!page[0]) { }
    for (uint64_t look = 0; look < reads; look++) {
        int found = read_copy(page, record);
        if (!found) torn++, found = read_copy(page + WORDS, record), torn += !found;
        if (!found) continue;
        beats++;
        fill(good, record[STEP]);
        wrong += memcmp(good, record, SUM * 8) != 0;
    }
    kill(writer, SIGKILL);
    waitpid(writer, NULL, 0);
    printf("%llu %llu %llu\n", (unsigned long long)beats, (unsigned long long)torn, (unsigned long long)wrong);
    return 0;
}
