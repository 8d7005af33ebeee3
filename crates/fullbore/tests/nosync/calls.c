/* Calls that wait for a disk, made in all the ways in which programs make them.
 *
 *   calls errors        each sync call on something that cannot be synced; prints the error numbers
 *   calls wrong         sync calls that have to fail in any case; prints the error numbers
 *   calls euid          prints the effective user
 *   calls write FILE N  writes FILE N times over, each time followed by fsync
 *   calls inherited N   fsync of descriptor N, which the caller has opened; prints the error number
 *   calls stay N        leaves a child behind that ends after N seconds
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
/* As a 32-bit program calls the kernel; works from 64-bit code too. */
static long call32(long number, long a, long b, long c, long d)
{
    long result;
    /* The fifth and the sixth argument are 0; below the stack pointer there may be variables. */
    __asm__ volatile("lea -128(%%rsp), %%rsp\n\tpush %%rbp\n\txor %%ebp, %%ebp\n\tint $0x80\n\t"
                     "pop %%rbp\n\tlea 128(%%rsp), %%rsp"
                     : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    return (int)result < 0 ? -(int)result : 0;
}
#endif

static int failed(long result) { return result < 0 ? errno : 0; }

int main(int count, char **words)
{
    int pipe_ends[2];
    if (count < 2 || pipe(pipe_ends))
        return 1;
    int fd = pipe_ends[1];
    /* Not mapped: freed at once. */
    char *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(page, 4096);
    if (!strcmp(words[1], "errors")) {
        printf("%d %d %d %d", failed(fsync(fd)), failed(fdatasync(fd)), failed(msync(page, 4096, MS_SYNC)),
               failed(sync_file_range(fd, 0, 0, 0)));
        printf(" %d", failed(syncfs(open("/", O_PATH))));
        sync();
#if defined(__x86_64__)
        /* fsync, fdatasync, sync_file_range, msync of an address that 32 bits hold */
        printf(" %ld %ld %ld %ld", call32(118, fd, 0, 0, 0), call32(148, fd, 0, 0, 0), call32(314, fd, 0, 0, 0),
               call32(144, 4096, 4096, MS_SYNC, 0));
        printf(" %ld", call32(344, open("/", O_PATH), 0, 0, 0));
        call32(36, 0, 0, 0, 0);
#endif
        printf("\n");
    } else if (!strcmp(words[1], "wrong")) {
        printf("%d %d %d %d %d\n", failed(fsync(-1)), failed(syscall(SYS_fdatasync, -1)),
               failed(msync(page, 4096, MS_SYNC | MS_ASYNC)), failed(msync(page, 4096, MS_ASYNC)),
               failed(sync_file_range(fd, 0, 0, 99)));
    } else if (!strcmp(words[1], "euid")) {
        printf("%d\n", (int)geteuid());
    } else if (!strcmp(words[1], "write") && count == 4) {
        int file = open(words[2], O_WRONLY | O_CREAT, 0644);
        for (int i = atoi(words[3]); i > 0; i--)
            if (pwrite(file, &i, sizeof i, 0) < 0 || fsync(file))
                return 1;
    } else if (!strcmp(words[1], "inherited") && count == 3) {
        printf("%d\n", failed(fsync(atoi(words[2]))));
    } else if (!strcmp(words[1], "stay") && count == 3) {
        if (fork())
            return 0;
        /* Nobody waits for its output. */
        close(1);
        close(2);
        sleep(atoi(words[2]));
    } else {
        return 1;
    }
    return 0;
}
