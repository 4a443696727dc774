// Processes that share, inherit and pass on connections.
#include "sockets.h"
#include <spawn.h>

extern char **environ;

// Bytes that were in a ring, and those after, in the child; then again in the parent.
int case_forked_child_goes_on(void) {
    struct pair p = connected();
    unsigned char bytes[60000];
    fill(bytes, sizeof bytes, 0);
    send_all(p.a, bytes, 20000);
    pid_t child = fork();
    if (child == 0) {
        close(p.a);
        receive_all(p.b, bytes, 40000);
        check(bytes, 40000, 0);
        fill(bytes, 3000, 5);
        send_all(p.b, bytes, 3000);
        _exit(0);
    }
    send_all(p.a, bytes + 20000, 20000);
    receive_all(p.a, bytes, 3000);
    check(bytes, 3000, 5);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    fill(bytes, sizeof bytes, 0);
    send_all(p.a, bytes, 10000);
    receive_all(p.b, bytes, 10000);
    check(bytes, 10000, 0);
    close(p.b);
    CHECK(recv(p.a, bytes, 1, 0) == 0);
    return 0;
}

// `cat` has no part in this but its standard input and output.
static void expect_cat_copies(struct pair p, const char *before) {
    char line[100];
    receive_all(p.a, line, strlen(before));
    CHECK(memcmp(line, before, strlen(before)) == 0);
    send_all(p.a, " second", 7);
    CHECK(shutdown(p.a, SHUT_WR) == 0);
    receive_all(p.a, line, 7);
    CHECK(memcmp(line, " second", 7) == 0);
}

int case_program_inherits(void) {
    struct pair p = connected();
    send_all(p.a, "first", 5);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dup2(p.b, 0) == 0 && dup2(p.b, 1) == 1);
        execlp("cat", "cat", NULL);
        _exit(1);
    }
    close(p.b);
    expect_cat_copies(p, "first");
    CHECK(recv(p.a, &child, 1, 0) == 0);
    wait(NULL);
    return 0;
}

int case_spawned_program_reads(void) {
    struct pair p = connected();
    CHECK(fcntl(p.b, F_SETFD, 0) == 0);
    send_all(p.a, "first", 5);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, p.b, 0) == 0 && posix_spawn_file_actions_adddup2(&actions, p.b, 1) == 0);
    pid_t child;
    char *arguments[] = {"cat", NULL};
    CHECK(posix_spawnp(&child, "cat", &actions, NULL, arguments, environ) == 0);
    expect_cat_copies(p, "first");
    CHECK(waitpid(child, NULL, 0) == child);
    return 0;
}

int case_passed_descriptor(void) {
    struct pair p = connected();
    int sockets[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(p.a);
        close(p.b);
        char control[CMSG_SPACE(sizeof(int))], byte, bytes[10];
        struct iovec piece = {&byte, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        CHECK(recvmsg(sockets[1], &message, 0) == 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        receive_all(fd, bytes, 10);
        CHECK(memcmp(bytes, "0123456789", 10) == 0);
        send_all(fd, "done", 4);
        _exit(0);
    }
    send_all(p.a, "01234", 5);
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec piece = {"x", 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &p.b, sizeof p.b);
    CHECK(sendmsg(sockets[0], &message, 0) == 1);
    close(p.b);
    send_all(p.a, "56789", 5);
    char bytes[4];
    receive_all(p.a, bytes, 4);
    CHECK(memcmp(bytes, "done", 4) == 0 && recv(p.a, bytes, 1, 0) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

// The other end is a program that was started without the library.
int case_peer_without_library(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    pid_t child = fork();
    if (child == 0) {
        unsetenv("LD_PRELOAD");
        char script[300];
        snprintf(script, sizeof script, "exec 3<>/dev/tcp/127.0.0.1/%d; for i in $(seq 200); do read -r line <&3; echo \"$line $i\" >&3; done",
                 ntohs(address.sin_port));
        execlp("bash", "bash", "-c", script, NULL);
        _exit(1);
    }
    int fd = accept(listener, NULL, NULL);
    char line[100], expected[100];
    for (int i = 1; i <= 200; i++) {
        send_all(fd, "hello\n", 6);
        int len = snprintf(expected, sizeof expected, "hello %d\n", i);
        receive_all(fd, line, (size_t)len);
        CHECK(memcmp(line, expected, (size_t)len) == 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && recv(fd, line, 1, 0) == 0);
    return 0;
}

// A vfork child shares memory, not descriptors: what it closes is open here.
int case_vfork_closes(void) {
    struct pair p = connected();
    pid_t child = vfork();
    if (child == 0) {
        close(p.a);
        close(p.b);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK(is_on_ring(p.a, p.b) == is_accelerated() && is_on_ring(p.b, p.a) == is_accelerated());
    return 0;
}
