// Uses threads, a child and a directory, says what came of it, and becomes the program that its arguments name. Needs no
// libibverbs, so that it can be linked with any libc.
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *fill(void *result) {
    char *memory = malloc(100000);
    if (memory) memset(memory, 1, 100000);
    free(memory);
    return result;
}

static const char *device(void) {
    static char name[256] = "none";
    DIR *folder = opendir("/sys/class/infiniband");
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.') snprintf(name, sizeof name, "%s", entry->d_name);
    if (folder) closedir(folder);
    return name;
}

int main(int argc, char **argv) {
    pthread_t thread;
    void *result = NULL;
    int status = 0;
    if (pthread_create(&thread, NULL, fill, (void *)5) || pthread_join(thread, &result)) return 1;
    pid_t child = fork();
    if (child == 0) _exit(3);
    if (child < 0 || waitpid(child, &status, 0) != child) return 1;
    printf("thread %ld, child %d, device %s\n", (long)result, WEXITSTATUS(status), device());
    fflush(stdout);
    if (argc > 1) {
        execv(argv[1], argv + 1);
        perror(argv[1]);
        return 1;
    }
    return 0;
}
