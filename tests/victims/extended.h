// What the host of the tests of extensions has. Its programs see the same.
struct text {
	unsigned long length;
	char *data;
};

struct inner {
	int shown;
	int hidden;
};

struct peer {
	unsigned int port;
	unsigned int secret;
	unsigned char key[8];
};

union value {
	long number;
	char *text;
};

union number {
	long whole;
	unsigned char bytes[8];
};

struct pair {
	char *data;
	unsigned long length;
};

// What it has is told by `kind`: 1 a number, 2 a peer, 3 and 4 a text.
struct tagged {
	unsigned int kind;
	int other;
	union {
		long number;
		struct peer *peer;
		struct text text;
	} value;
};

// Numbers only: `a` if `which` is -1.
struct choice {
	int which;
	int other;
	union {
		long a;
		int b[2];
	} of;
};

struct small {
	unsigned char which;
	union {
		long a;
		int b[2];
	} of;
};

struct request {
	unsigned long magic;
	int method;
	int secret;
	struct text uri;
	struct text body;
	struct peer *peer;
	struct peer *owner;
	unsigned int flags : 3, mode : 5, rest : 24;
	unsigned int status;
	int codes[4];
	struct inner nested[2];
	union value value;
	union number number;
	const int fixed;
	unsigned char kind;
	unsigned char done;
	unsigned short port;
	struct request *next;
	struct pair *pair;
	char name[16];
	char *label;
	unsigned int count;
	long *numbers;
	void (*handler)(struct request *r);
	struct tagged tagged;
	struct tagged *tag;
	struct choice choice;
	struct small small;
};
