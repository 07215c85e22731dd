// What stacks.bpf.c tells of a stack.
enum { FRAMES = 64 };

// As in ../victims/stacked.cc.
struct known {
	char name[16];
	unsigned long count;
	unsigned long frames[FRAMES];
};

struct told {
	struct known known;
	long bytes; // What bpf_get_stack returns.
	int id; // What bpf_get_stackid returns.
	unsigned long frames[FRAMES];
};
