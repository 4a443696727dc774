// agent PORT: the guest's process 1. It runs the commands that come in through a virtio serial port, a line each:
//   start ID<TAB>PROGRAM<TAB>ARGUMENT...    several may run at once
//   kill ID                                 with everything in its process group
// and answers, a line each:
//   ready                                   once
//   out ID TEXT                             a line that the command printed, on either stream
//   end ID STATUS                           as wait() gives it
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { JOBS = 32, LINE = 4096, ARGUMENTS = 64 };

struct job {
    pid_t pid; // 0: none
    int id;
    int output;
    size_t used;
    char line[LINE];
};

static struct job jobs[JOBS];
static int port;

static void end_guest(const char *why) {
    perror(why);
    reboot(RB_POWER_OFF);
}

static void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void answer(const char *format, ...) {
    char text[LINE + 64];
    va_list arguments;
    va_start(arguments, format);
    int len = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (int done = 0; done < len;) {
        ssize_t n = write(port, text + done, (size_t)(len - done));
        if (n < 0 && errno != EINTR) end_guest("writing to the port");
        if (n > 0) done += (int)n;
    }
}

static void run(char **arguments, int output) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int null = open("/dev/null", O_RDONLY);
    dup2(null, 0);
    dup2(output, 1);
    dup2(output, 2);
    execvp(arguments[0], arguments);
    perror(arguments[0]);
    _exit(127);
}

static void start(char *line) {
    char *arguments[ARGUMENTS] = {0};
    char *rest = line;
    int id = atoi(strsep(&rest, "\t"));
    for (int i = 0; rest && i < ARGUMENTS - 1; i++) arguments[i] = strsep(&rest, "\t");
    struct job *job = jobs;
    while (job < jobs + JOBS && job->pid) job++;
    int ends[2];
    if (job == jobs + JOBS || !arguments[0] || pipe2(ends, O_CLOEXEC) != 0) {
        answer("out %d the agent cannot start this\nend %d %d\n", id, id, 127 << 8);
        return;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    job->id = id;
    job->output = ends[0];
    job->used = 0;
    job->pid = fork();
    if (job->pid == 0) run(arguments, ends[1]);
    close(ends[1]);
}

static void obey(char *line) {
    if (strncmp(line, "start ", 6) == 0) start(line + 6);
    if (strncmp(line, "kill ", 5) == 0)
        for (struct job *job = jobs; job < jobs + JOBS; job++)
            if (job->pid > 0 && job->id == atoi(line + 5)) kill(-job->pid, SIGKILL);
}

static void read_commands(void) {
    static char text[1 << 16];
    static size_t used;
    ssize_t n = read(port, text + used, sizeof text - used);
    if (n <= 0) end_guest("reading from the port");
    used += (size_t)n;
    char *begin = text, *end;
    while ((end = memchr(begin, '\n', used))) {
        *end = 0;
        obey(begin);
        used -= (size_t)(end + 1 - begin);
        begin = end + 1;
    }
    memmove(text, begin, used);
}

static void pass_lines_on(struct job *job, bool all) {
    char *begin = job->line, *end;
    while ((end = memchr(begin, '\n', job->used))) {
        answer("out %d %.*s\n", job->id, (int)(end - begin), begin);
        job->used -= (size_t)(end + 1 - begin);
        begin = end + 1;
    }
    if (job->used == LINE || (all && job->used)) {
        answer("out %d %.*s\n", job->id, (int)job->used, begin);
        job->used = 0;
    }
    memmove(job->line, begin, job->used);
}

static void read_output(struct job *job) {
    ssize_t n;
    while ((n = read(job->output, job->line + job->used, LINE - job->used)) > 0) {
        job->used += (size_t)n;
        pass_lines_on(job, false);
    }
    if (n == 0 || errno != EAGAIN) {
        close(job->output);
        job->output = -1;
    }
}

static void reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct job *job = jobs; job < jobs + JOBS; job++)
            if (job->pid == pid) {
                if (job->output >= 0) read_output(job);
                pass_lines_on(job, true);
                if (job->output >= 0) close(job->output);
                answer("end %d %d\n", job->id, status);
                job->pid = 0;
            }
}

int main(int argc, char **argv) {
    if (argc != 2 || (port = open(argv[1], O_RDWR | O_CLOEXEC)) < 0) end_guest("the port");
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    int ended = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    answer("ready\n");
    for (;;) {
        struct pollfd waited[2 + JOBS] = {{.fd = port, .events = POLLIN}, {.fd = ended, .events = POLLIN}};
        for (int i = 0; i < JOBS; i++)
            waited[2 + i] = (struct pollfd){.fd = jobs[i].pid ? jobs[i].output : -1, .events = POLLIN};
        if (poll(waited, 2 + JOBS, -1) < 0) continue;
        for (int i = 0; i < JOBS; i++)
            if (waited[2 + i].revents) read_output(&jobs[i]);
        struct signalfd_siginfo ignored;
        while (read(ended, &ignored, sizeof ignored) > 0) {}
        reap();
        if (waited[0].revents) read_commands();
    }
}
