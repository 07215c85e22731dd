// Wrong uses of the C API: each is an error with a reason, none ends the process.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ring3.h>

#undef assert
#define assert(holds) ((holds) ? (void)0 : (fprintf(stderr, "line %d: " #holds ": %s\n%s\n", __LINE__, ring3_error(), ring3_log()), _exit(1)))

static jmp_buf out;

static uint64_t leave(uint64_t r1, uint64_t r2, uint64_t r3, uint64_t r4, uint64_t r5, void *data)
{
	(void)r2, (void)r3, (void)r4, (void)r5, (void)data;
	if (r1 == 1)
		longjmp(out, 1);
	return r1;
}

static void *call_until_unloaded(void *program)
{
	int failed;

	while ((failed = ring3_call(program, NULL, 0, NULL)) == 0)
		;
	assert(failed == RING3_EUNLOADED);
	assert(strstr(ring3_error(), "unloaded"));
	return NULL;
}

static void null_pointers(ring3_vm *vm)
{
	struct ring3_field nameless = { NULL, 0, 4, RING3_NUMBER, 0 };

	assert(ring3_set_engine(NULL, 0) == RING3_EINVAL);
	assert(strcmp(ring3_error(), "the machine is NULL") == 0);
	assert(ring3_set_engine(vm, 5) == RING3_EINVAL);
	assert(ring3_set_fields(vm, NULL, 3, 0) == RING3_EINVAL);
	assert(ring3_set_fields(vm, &nameless, 1, 0) == RING3_EINVAL);
	assert(ring3_load_file(vm, NULL) == RING3_EINVAL);
	assert(ring3_load_file(vm, "/nonexistent") == RING3_EINVAL);
	assert(ring3_load_object(vm, NULL, 5) == RING3_EINVAL);
	assert(ring3_load_object(vm, "nonsense", 8) == RING3_EINVAL);
	assert(ring3_load_insns(vm, "odd", "abc", 3) == RING3_EINVAL);
	assert(ring3_load_text(vm, "text", "nonsense") == RING3_EINVAL && strstr(ring3_error(), "line 1"));
	assert(ring3_call(NULL, NULL, 0, NULL) == RING3_EINVAL);
	assert(!ring3_program_find(vm, "none") && !ring3_map_find(vm, "none"));
	assert(strstr(ring3_error(), "there is no map none"));
	assert(ring3_register(vm, "f", 1, NULL, NULL, NULL, 0, NULL) == RING3_EINVAL);
	assert(ring3_register(vm, "f", -7, leave, NULL, NULL, 0, NULL) == RING3_EINVAL);
	assert(ring3_allow_helper(vm, "nonsense") == RING3_EINVAL);
	assert(ring3_map_reuse(vm, "m", -1) == RING3_EINVAL);
	assert(ring3_map_lookup(NULL, "", NULL) == RING3_EINVAL);
	assert(ring3_map_key_size(NULL) == 0);
	ring3_vm_free(NULL);
}

static void maps(ring3_vm *vm)
{
	uint64_t key = 1, value = 2, found = 0;
	ring3_map *map = ring3_map_create(vm, "hash", 1, 8, 8, 2, 0);

	assert(map && ring3_map_find(vm, "hash") == map && ring3_map_value_size(map) == 8);
	assert(!ring3_map_create(vm, "wrong", 1, 0, 0, 0, 0) && strstr(ring3_error(), "the map wrong: EINVAL"));
	assert(ring3_map_lookup(map, &key, &found) == 0);
	assert(ring3_map_update(map, &key, &value, 0) == 0);
	assert(ring3_map_update(map, &key, &value, 1) == RING3_EMAP && strstr(ring3_error(), "EEXIST"));
	assert(ring3_map_lookup(map, &key, &found) == 1 && found == 2);
	assert(ring3_map_lookup(map, &key, NULL) == RING3_EINVAL);
	assert(ring3_map_next_key(map, NULL, &found) == 1 && found == 1);
	assert(ring3_map_next_key(map, &key, &found) == 0);
	assert(ring3_map_delete(map, &key) == 1 && ring3_map_delete(map, &key) == 0);
	assert(ring3_map_consume(map, NULL, NULL) == RING3_EINVAL);
	assert(ring3_map_read(map, ~0ull, &found, 8) < 0 && ring3_map_read(map, 0, &found, ~0ul) < 0);
	int file = ring3_map_file(map);
	assert(file >= 0 && close(file) == 0);
}

int main(void)
{
	ring3_vm *vm = ring3_vm_new();
	pthread_t threads[3];
	uint64_t word = 0, result = 7;
	char text[64];
	int proved = -1;

	assert(vm && *ring3_version());
	null_pointers(vm);
	maps(vm);

	assert(ring3_load_text(vm, "reads", "r0 = *(u8 *)(r1 +0)\nexit") == RING3_EREFUSED);
	assert(strstr(ring3_error(), "refuses the program reads at instruction 0") && strstr(ring3_log(), "processed"));
	assert(ring3_set_memory(vm, 8, 0) == 0);
	assert(ring3_load_text(vm, "reads", "r0 = *(u64 *)(r1 +0)\nexit") == 0);
	ring3_program *reads = ring3_program_find(vm, "reads");
	assert(reads && ring3_call(reads, &word, 7, &result) == RING3_ESHORT && ring3_call(reads, NULL, 8, &result) == RING3_ESHORT);
	word = 99;
	assert(ring3_call(reads, &word, 8, &result) == 0 && result == 99);
	assert(ring3_call(reads, &word, 8, NULL) == 0);
	assert(ring3_call_packet(reads, NULL, 0, NULL, 0, &result) == RING3_ESHORT);
	assert(ring3_program_bound(reads, &proved) == 2 && proved == 1);
	assert(ring3_program_listing(reads, text, 8) > 8 && strlen(text) == 7);
	assert(ring3_program_listing(reads, NULL, 0) > 8 && ring3_program_code(reads, NULL, 0) > 0);

	// A function may leave the program by longjmp; the thread can call programs afterwards.
	struct ring3_parameter any = { .kind = RING3_ANYTHING };
	assert(ring3_register(vm, "leave", 9, leave, NULL, &any, 1, NULL) == 0);
	assert(ring3_load_text(vm, "leaves", "r1 = *(u64 *)(r1 +0)\ncall 9\nexit") == 0);
	ring3_program *leaves = ring3_program_find(vm, "leaves");
	for (int i = 0; i < 10; i++) {
		word = 1;
		if (setjmp(out) == 0) {
			ring3_call(leaves, &word, 8, &result);
			assert(!"behind longjmp");
		}
		word = 5;
		assert(ring3_call(leaves, &word, 8, &result) == 0 && result == 5);
	}

	assert(ring3_set_memory(vm, 0, 0) == 0 && ring3_set_budget(vm, 1) == 0);
	assert(ring3_load_text(vm, "long", "r0 = 0\nexit") == RING3_EBUDGET);
	assert(ring3_set_budget(vm, 0) == 0 && ring3_load_text(vm, "ends", "r0 = 0\nexit") == 0);
	ring3_program *ends = ring3_program_find(vm, "ends");
	for (int i = 0; i < 3; i++)
		assert(pthread_create(&threads[i], NULL, call_until_unloaded, ends) == 0);
	usleep(20000);
	assert(ring3_program_unload(ends) == 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert(ring3_program_unload(ends) == RING3_EUNLOADED);
	ring3_vm_free(vm);
	printf("all is well\n");
	return 0;
}
