// SPDX-License-Identifier: MIT OR Apache-2.0
// A server with the mistake of CVE-2014-0160 ("Heartbleed"), and its client. The code is ours; the mistake is OpenSSL's.
//
//   heartbeat serve PORT               answers heartbeats (RFC 6520), over UDP, on 127.0.0.1
//   heartbeat ask PORT TEXT [LENGTH]   sends one that says that its text has LENGTH bytes, and prints the answer
//
// A heartbeat is one byte that is 1, two bytes with the length of a text, the text, and at least 16 bytes of padding. The answer
// is the same with 2 instead of 1. An answer goes to whoever asks: nobody has logged in.
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define REQUEST 1
#define RESPONSE 2
#define HEADER 3
#define PADDING 16
#define TEXT_MAX 1024

/* What the client has sent. */
struct record {
	unsigned int length;
	unsigned char *data;
};

/* What lies side by side in the server's memory. */
static struct {
	unsigned char received[64];
	char password[64];
	unsigned char more[1 << 16];
} memory = { .password = "The password is swordfish." };

static unsigned char answer[HEADER + 0xffff + PADDING];

/* Makes the answer to a heartbeat; its length, 0: there is none. */
__attribute__((noinline)) int process_heartbeat(struct record *record)
{
	unsigned char *from = record->data;
	unsigned int text_length;

	if (record->length < HEADER || from[0] != REQUEST)
		return 0;
	text_length = from[1] << 8 | from[2];
	/* The mistake: whether the record has so many bytes is not asked. */
	answer[0] = RESPONSE;
	answer[1] = from[1];
	answer[2] = from[2];
	memcpy(answer + HEADER, from + HEADER, text_length);
	memset(answer + HEADER + text_length, 0, PADDING);
	return HEADER + text_length + PADDING;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int open_socket(struct sockaddr_in *address, const char *port)
{
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	if (fd < 0)
		fail("socket");
	*address = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return fd;
}

static void serve(const char *port)
{
	struct sockaddr_in address;
	int fd = open_socket(&address, port);

	if (bind(fd, (struct sockaddr *)&address, sizeof(address)))
		fail("bind");
	for (;;) {
		struct sockaddr_in client;
		socklen_t size = sizeof(client);
		ssize_t bytes = recvfrom(fd, memory.received, sizeof(memory.received), 0, (struct sockaddr *)&client, &size);
		struct record record = { .length = bytes, .data = memory.received };

		if (bytes < 0)
			fail("recvfrom");
		bytes = process_heartbeat(&record);
		/* (An answer that is too long for a datagram is not sent.) */
		if (bytes)
			sendto(fd, answer, bytes, 0, (struct sockaddr *)&client, size);
	}
}

static int ask(const char *port, const char *text, const char *length)
{
	struct sockaddr_in address;
	struct timeval second = { .tv_sec = 1 };
	unsigned char bytes[sizeof(answer)] = { REQUEST };
	size_t own = strnlen(text, TEXT_MAX), said = length ? strtoul(length, NULL, 0) : own;
	int fd = open_socket(&address, port);
	ssize_t got;

	bytes[1] = said >> 8;
	bytes[2] = said;
	memcpy(bytes + HEADER, text, own);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
	if (sendto(fd, bytes, HEADER + own + PADDING, 0, (struct sockaddr *)&address, sizeof(address)) < 0)
		fail("sendto");
	got = recv(fd, bytes, sizeof(bytes), 0);
	if (got < HEADER + PADDING) {
		puts("no answer");
		return 1;
	}
	for (ssize_t at = HEADER; at < got - PADDING; at++)
		putchar(isprint(bytes[at]) ? bytes[at] : '.');
	putchar('\n');
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 3 && !strcmp(arguments[1], "serve"))
		serve(arguments[2]);
	if ((count == 4 || count == 5) && !strcmp(arguments[1], "ask"))
		return ask(arguments[2], arguments[3], arguments[4]);
	fprintf(stderr, "heartbeat serve PORT | heartbeat ask PORT TEXT [LENGTH]\n");
	return 2;
}
