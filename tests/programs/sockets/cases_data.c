// Bytes: they arrive as they were sent, by every call that carries some.
#include "sockets.h"

struct flow {
    int fd;
    uint64_t total;
    unsigned seed;
};

static void *pour(void *argument) {
    struct flow *flow = argument;
    static __thread unsigned char bytes[300000];
    for (uint64_t at = 0; at < flow->total;) {
        size_t len = (size_t)rand_r(&flow->seed) % (rand_r(&flow->seed) % 8 == 0 ? sizeof bytes : 3000) + 1;
        if (len > flow->total - at) len = flow->total - at;
        fill(bytes, len, at);
        send_all(flow->fd, bytes, len);
        at += len;
    }
    return NULL;
}

static void *drain(void *argument) {
    struct flow *flow = argument;
    static __thread unsigned char bytes[200000];
    for (uint64_t at = 0; at < flow->total;) {
        size_t len = (size_t)rand_r(&flow->seed) % sizeof bytes + 1;
        ssize_t received = recv(flow->fd, bytes, len, 0);
        CHECK(received > 0);
        check(bytes, (size_t)received, at);
        at += (uint64_t)received;
    }
    return NULL;
}

// From the first byte on, so that the moves to rings are under way.
int case_bytes_both_ways(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    for (unsigned round = 0; round < 8; round++) {
        struct pair p = {.a = socket(AF_INET, SOCK_STREAM, 0)};
        CHECK(connect(p.a, (struct sockaddr *)&address, sizeof address) == 0);
        p.b = accept(listener, NULL, NULL);
        struct flow flows[] = {{p.a, 6000000, round}, {p.b, 6000000, round + 9}, {p.b, 6000000, round + 17}, {p.a, 6000000, round + 33}};
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, i % 2 == 0 ? pour : drain, &flows[i]) == 0);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
        close(p.a);
        close(p.b);
    }
    return 0;
}

int case_many_pieces(void) {
    struct pair p = connected();
    unsigned char out[4000], in[4000];
    fill(out, sizeof out, 0);
    struct iovec pieces[] = {{out, 1}, {out + 1, 0}, {out + 1, 2999}, {out + 3000, 1000}};
    CHECK(writev(p.a, pieces, 4) == 4000);
    struct iovec places[] = {{in, 10}, {in + 10, 3000}, {in + 3010, 990}};
    CHECK(readv(p.b, places, 3) == 4000);
    check(in, sizeof in, 0);
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 4, .msg_flags = -1};
    CHECK(sendmsg(p.b, &message, 0) == 4000);
    char control[64], name[64];
    message = (struct msghdr){.msg_iov = places, .msg_iovlen = 3, .msg_control = control, .msg_controllen = sizeof control, .msg_name = name, .msg_namelen = sizeof name};
    CHECK(recvmsg(p.a, &message, 0) == 4000 && message.msg_controllen == 0 && message.msg_flags == 0);
    check(in, sizeof in, 0);
    CHECK(write(p.a, out, 0) == 0 && read(p.b, in, 0) == 0);
    CHECK(recv(p.b, in, 0, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    send_all(p.a, out, 1);
    CHECK(recv(p.b, in, 0, MSG_DONTWAIT) == 0);
    receive_all(p.b, in, 1);
    volatile int none = -1;
    CHECK(writev(p.a, pieces, none) == -1 && errno == EINVAL);
    return 0;
}

int case_peek_wait_all_and_truncate(void) {
    struct pair p = connected();
    unsigned char out[1000], in[1000];
    fill(out, sizeof out, 0);
    CHECK(send(p.a, out, 600, 0) == 600);
    CHECK(recv(p.b, in, 1000, MSG_PEEK) == 600 && recv(p.b, in, 100, MSG_PEEK) == 100);
    check(in, 100, 0);
    CHECK(recv(p.b, NULL, 50, MSG_TRUNC) == 50);
    CHECK(recv(p.b, in, 550, 0) == 550);
    check(in, 550, 50);
    CHECK(recv(p.b, in, 10, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(send(p.a, out, 300, 0) == 300);
    if (fork() == 0) {
        usleep(50000);
        send_all(p.a, out + 300, 700);
        _exit(0);
    }
    CHECK(recv(p.b, in, 1000, MSG_WAITALL) == 1000);
    check(in, 1000, 0);
    wait(NULL);
    return 0;
}

// A writer that does not wait stops when there is no space, and goes on when there is.
int case_full_and_drained(void) {
    struct pair p = connected();
    nonblocking(p.a);
    static unsigned char bytes[1 << 16];
    uint64_t sent = 0, received = 0;
    for (int round = 0; round < 5; round++) {
        for (;;) {
            fill(bytes, sizeof bytes, sent);
            ssize_t some = write(p.a, bytes, sizeof bytes);
            if (some < 0) break;
            sent += (uint64_t)some;
        }
        CHECK(errno == EAGAIN && sent > received + 1000);
        struct pollfd wait = {.fd = p.a, .events = POLLOUT};
        CHECK(poll(&wait, 1, 0) == 0);
        while (received < sent) {
            ssize_t some = read(p.b, bytes, sizeof bytes);
            CHECK(some > 0);
            check(bytes, (size_t)some, received);
            received += (uint64_t)some;
        }
        CHECK(poll(&wait, 1, 5000) == 1 && wait.revents == POLLOUT);
    }
    return 0;
}

int case_files(void) {
    struct pair p = connected();
    FILE *file = tmpfile();
    static unsigned char bytes[50000];
    fill(bytes, sizeof bytes, 0);
    CHECK(file != NULL && fwrite(bytes, sizeof bytes, 1, file) == 1 && fflush(file) == 0);
    off_t from = 1000;
    CHECK(sendfile(p.a, fileno(file), &from, 20000) == 20000 && from == 21000);
    receive_all(p.b, bytes, 20000);
    check(bytes, 20000, 1000);
    CHECK(lseek(fileno(file), 40000, SEEK_SET) == 40000);
    CHECK(sendfile(p.a, fileno(file), NULL, 20000) == 10000 && lseek(fileno(file), 0, SEEK_CUR) == 50000);
    receive_all(p.b, bytes, 10000);
    check(bytes, 10000, 40000);
    // From a pipe, by the kernel.
    int ends[2];
    fill(bytes, 3000, 7);
    CHECK(pipe(ends) == 0 && write(ends[1], bytes, 3000) == 3000);
    CHECK(splice(ends[0], NULL, p.a, NULL, 3000, 0) == 3000);
    receive_all(p.b, bytes, 3000);
    check(bytes, 3000, 7);
    fill(bytes, 5, 0);
    send_all(p.b, bytes, 5);
    receive_all(p.a, bytes, 5);
    check(bytes, 5, 0);
    return 0;
}

int case_messages_at_once(void) {
    struct pair p = connected();
    unsigned char out[300], in[300];
    fill(out, sizeof out, 0);
    struct iovec pieces[] = {{out, 100}, {out + 100, 200}}, places[] = {{in, 100}, {in + 100, 200}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &pieces[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &pieces[1], .msg_iovlen = 1}}};
    CHECK(sendmmsg(p.a, messages, 2, 0) == 2 && messages[0].msg_len == 100 && messages[1].msg_len == 200);
    messages[0].msg_hdr.msg_iov = &places[0];
    messages[1].msg_hdr.msg_iov = &places[1];
    int count = recvmmsg(p.b, messages, 2, MSG_WAITFORONE, NULL);
    CHECK(count >= 1 && messages[0].msg_len == 100);
    if (count == 1) receive_all(p.b, in + 100, 200);
    check(in, sizeof in, 0);
    return 0;
}

// `preadv2` and `pwritev2` at no offset are `readv` and `writev` with flags.
int case_vectors_with_flags(void) {
    struct pair p = connected();
    unsigned char out[300], in[300];
    fill(out, sizeof out, 0);
    struct iovec pieces[] = {{out, 100}, {out + 100, 200}}, places[] = {{in, 150}, {in + 150, 150}};
    CHECK(preadv2(p.b, places, 2, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
    CHECK(pwritev2(p.a, pieces, 2, -1, 0) == 300);
    CHECK(preadv2(p.b, places, 2, -1, 0) == 300);
    check(in, sizeof in, 0);
    // Beside calls without flags.
    send_all(p.a, out, sizeof out);
    memset(in, 0, sizeof in);
    CHECK(preadv2(p.b, places, 2, -1, 0) == 300);
    check(in, sizeof in, 0);
    CHECK(!is_accelerated() || is_on_ring(p.a, p.b));
    CHECK(preadv2(p.b, places, 2, 0, 0) == -1 && errno == ESPIPE);
    CHECK(pwritev2(p.a, pieces, 2, 8, 0) == -1 && errno == ESPIPE);
    CHECK(preadv2(p.b, places, 2, -1, 1 << 30) == -1 && errno == EOPNOTSUPP);
    return 0;
}

// What has come by TCP and by a ring is there at once, for one call.
int case_bytes_of_both_ways_at_once(void) {
    struct pair p = fresh();
    unsigned char bytes[2000];
    fill(bytes, sizeof bytes, 0);
    for (size_t at = 0; at < sizeof bytes; at += 10) {
        send_all(p.a, bytes + at, 10);
        if (at % 200 == 0) usleep(1000);
    }
    for (int count = 0; count < (int)sizeof bytes; usleep(1000)) CHECK(ioctl(p.b, FIONREAD, &count) == 0);
    memset(bytes, 0, sizeof bytes);
    CHECK(recv(p.b, bytes, sizeof bytes, 0) == sizeof bytes);
    check(bytes, sizeof bytes, 0);
    return 0;
}

static int left_after(int fd, size_t len, size_t room) {
    char bytes[100], control[CMSG_SPACE(sizeof(int))];
    struct iovec place = {bytes, len};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    CHECK(recvmsg(fd, &message, 0) == (ssize_t)len);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header == NULL) return message.msg_flags & MSG_CTRUNC ? -2 : -1;
    CHECK(header->cmsg_level == IPPROTO_TCP && header->cmsg_type == TCP_CM_INQ && header->cmsg_len == CMSG_LEN(sizeof(int)));
    int left;
    memcpy(&left, CMSG_DATA(header), sizeof left);
    return left;
}

int case_left_to_read(void) {
    struct pair p = connected();
    const size_t room = CMSG_SPACE(sizeof(int));
    char bytes[100] = {0};
    int on = 1, off = 0;
    send_all(p.a, bytes, 100);
    CHECK(left_after(p.b, 10, room) == -1);
    CHECK(setsockopt(p.b, IPPROTO_TCP, TCP_INQ, &on, sizeof on) == 0);
    CHECK(left_after(p.b, 30, room) == 60);
    CHECK(left_after(p.b, 10, 3) == -2);
    CHECK(left_after(p.b, 50, room) == 0);
    send_all(p.a, bytes, 50);
    CHECK(shutdown(p.a, SHUT_WR) == 0);
    struct pollfd wait = {.fd = p.b, .events = POLLRDHUP};
    CHECK(poll(&wait, 1, 5000) == 1);
    // An end counts as one byte.
    CHECK(left_after(p.b, 20, room) == 31);
    CHECK(left_after(p.b, 30, room) == 1);
    CHECK(setsockopt(p.b, IPPROTO_TCP, TCP_INQ, &off, sizeof off) == 0);
    CHECK(left_after(p.b, 0, room) == -1);
    return 0;
}

int case_counts_of_ioctl(void) {
    struct pair p = connected();
    int count = -1;
    char bytes[1000] = {0};
    CHECK(ioctl(p.b, FIONREAD, &count) == 0 && count == 0);
    send_all(p.a, bytes, 777);
    struct pollfd wait = {.fd = p.b, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1);
    CHECK(ioctl(p.b, FIONREAD, &count) == 0 && count == 777);
    receive_all(p.b, bytes, 777);
    CHECK(ioctl(p.b, FIONREAD, &count) == 0 && count == 0);
    return 0;
}

// Rings have none: the connection goes to TCP, and no byte is lost or out of order.
int case_urgent_data(void) {
    struct pair p = connected();
    unsigned char bytes[3000];
    fill(bytes, sizeof bytes, 0);
    send_all(p.a, bytes, 1000);
    CHECK(send(p.a, "!", 1, MSG_OOB) == 1);
    send_all(p.a, bytes + 1000, 1000);
    memset(bytes, 0, sizeof bytes);
    receive_all(p.b, bytes, 1000);
    struct pollfd wait = {.fd = p.b, .events = POLLPRI};
    CHECK(poll(&wait, 1, 5000) == 1);
    char urgent = 0;
    CHECK(recv(p.b, &urgent, 1, MSG_OOB) == 1 && urgent == '!');
    receive_all(p.b, bytes + 1000, 1000);
    check(bytes, 2000, 0);
    CHECK(!is_on_ring(p.a, p.b));
    is_on_ring(p.b, p.a);
    return 0;
}

// What a call cannot take it refuses as the kernel does, before or after the bytes.
int case_wrong_arguments(void) {
    struct pair p = connected();
    char bytes[4] = {0};
    // The compiler is not to know, and to warn.
    struct iovec part = {bytes, 1}, many[IOV_MAX + 1], *volatile none = NULL;
    volatile int less_than_none = -1;
    for (int i = 0; i <= IOV_MAX; i++) many[i] = part;
    send_all(p.a, "abc", 3);
    CHECK(readv(p.b, none, 1) == -1 && errno == EFAULT);
    CHECK(readv(p.b, many, IOV_MAX + 1) == -1 && errno == EINVAL);
    CHECK(writev(p.a, many, less_than_none) == -1 && errno == EINVAL);
    struct msghdr message = {.msg_iovlen = 1};
    CHECK(recvmsg(p.b, &message, 0) == -1 && errno == EFAULT);
    CHECK(sendmsg(p.a, &message, 0) == -1 && errno == EFAULT);
    message = (struct msghdr){.msg_iov = many, .msg_iovlen = IOV_MAX + 1};
    CHECK(recvmsg(p.b, &message, 0) == -1 && errno == EMSGSIZE);
    CHECK(sendmsg(p.a, &message, 0) == -1 && errno == EMSGSIZE);
    struct sockaddr_in name;
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = -1};
    CHECK(recvmsg(p.b, &message, 0) == -1 && errno == EINVAL);
    CHECK(sendmsg(p.a, &message, 0) == -1 && errno == EINVAL);
    // Nobody asks for a name: its length is not touched.
    message = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1, .msg_namelen = 77};
    CHECK(recvmsg(p.b, &message, 0) == 1 && bytes[0] == 'a' && message.msg_namelen == 77);
    socklen_t len = 77;
    CHECK(recvfrom(p.b, bytes, 1, MSG_PEEK, NULL, &len) == 1 && len == 77);
    CHECK(recvfrom(p.b, bytes, 1, MSG_PEEK, (struct sockaddr *)&name, &len) == 1 && len == 0);
    len = -1;
    // The byte has gone all the same.
    CHECK(recvfrom(p.b, bytes, 1, 0, (struct sockaddr *)&name, &len) == -1 && errno == EINVAL);
    CHECK(recv(p.b, bytes, 4, 0) == 1 && bytes[0] == 'c');
    return 0;
}

// stdio reads and writes by functions of its own.
int case_standard_streams(void) {
    struct pair p = connected();
    send_all(p.a, "first\n", 6);
    FILE *in = fdopen(dup(p.b), "r"), *out = fdopen(dup(p.b), "w");
    char line[100];
    CHECK(in != NULL && fgets(line, sizeof line, in) != NULL && strcmp(line, "first\n") == 0);
    send_all(p.a, "second\nthird\n", 13);
    CHECK(fgets(line, sizeof line, in) != NULL && strcmp(line, "second\n") == 0);
    CHECK(fgets(line, sizeof line, in) != NULL && strcmp(line, "third\n") == 0);
    CHECK(fprintf(out, "answer\n") == 7 && fflush(out) == 0);
    receive_all(p.a, line, 7);
    CHECK(memcmp(line, "answer\n", 7) == 0);
    fclose(in);
    fclose(out);
    close(p.b);
    CHECK(recv(p.a, line, 1, 0) == 0);
    return 0;
}
