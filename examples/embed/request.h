// What the server shows to its extensions.
#ifndef REQUEST_H
#define REQUEST_H

#include <linux/types.h>

enum { VERDICT_PASS = 0, VERDICT_REFUSE = 1 };

struct request {
	__u32 port;
	__u32 refusals;
	char user[16];
	char path[40];
};

#endif
