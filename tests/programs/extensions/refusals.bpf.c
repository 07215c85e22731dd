// Extensions that try to exceed their class. The test compiles each part by itself, behind `host.bpf.h`:
//   // CASE name class: what the refusal says
//   // ALSO class2: the program is accepted with that class
// `-` instead of a text: the program is accepted.

// ---- Fields ----

// CASE reads_ungranted_field plain: off=12 size=4 of struct request is not granted to be read
EXTENSION { return R->secret == 1; }

// CASE reads_first_bytes plain: off=0 size=8 of struct request is not granted to be read
EXTENSION { return R->magic == 1; }

// CASE reads_status_with_another_class plain: off=68 size=4 of struct request is not granted to be read
// ALSO status
EXTENSION { return R->status == 201; }

// CASE writes_field_that_may_be_read plain: off=8 size=4 of struct request (method) is not granted to be written
EXTENSION { R->method = 1; return 0; }

// CASE writes_status_with_another_class plain: off=68 size=4 of struct request is not granted to be written
// ALSO status
EXTENSION { R->status = 201; return 0; }

// CASE reads_beyond_a_field plain: off=8 size=8 of struct request (method) is not granted to be read
EXTENSION { return *(volatile __u64 *)&R->method == 1; }

// CASE reads_across_into_a_field plain: off=6 size=4 of struct request (method) is not granted to be read
EXTENSION { return *(volatile __u32 *)((char *)R + 6) == 1; }

// CASE reads_part_of_a_field plain: -
EXTENSION { return *(volatile __u8 *)((char *)R + 9) == 1; }

// CASE writes_over_a_neighbour status: off=68 size=8 of struct request (status) is not granted to be written
EXTENSION { struct request *r = R; asm volatile("*(u64 *)(%0 + 68) = %1" ::"r"(r), "r"(1)); return 0; }

// CASE reads_before_the_object plain: unbounded access to struct request
EXTENSION { return *(volatile __u32 *)((char *)R - 4) == 1; }

// CASE reads_behind_the_object plain: of struct request is not granted to be read
EXTENSION { return *(volatile __u32 *)((char *)R + 4096) == 1; }

// CASE reads_other_element one_code: off=72 size=4 of struct request is not granted to be read
// ALSO fields
EXTENSION { return *(volatile int *)&R->codes[0] == 1; }

// CASE index_over_the_end fields: is not granted to be read
EXTENSION { __u32 i = R->status & 7; return *(volatile int *)&R->codes[i] == 1; }

// CASE index_within_an_array fields: -
EXTENSION { __u32 i = R->status & 3; return *(volatile int *)&R->codes[i] == 1; }

// CASE index_over_the_start fields: makes host_ptr pointer be out of bounds
EXTENSION { int i = R->method; if (i > 3) return 0; return ((volatile int *)R->codes)[i] == 1; }

// CASE index_unbounded fields: unbounded access to struct request
EXTENSION { __u64 i = R->method; return ((volatile int *)R->codes)[i & 0xfffffffffful] == 1; }

// CASE index_over_a_hidden_neighbour fields: is not granted to be read
EXTENSION { __u32 i = R->status & 1; return ((volatile int *)R->nested)[i] == 1; }

// CASE reads_hidden_part_of_an_element fields: off=92 size=4 of struct request is not granted to be read
EXTENSION { return *(volatile int *)&R->nested[0].hidden == 1; }

// CASE reads_more_than_a_bit_field fields: off=64 size=4 of struct request (mode) is not granted to be read
EXTENSION { return *(volatile __u32 *)((char *)R + 64) == 1; }

// CASE writes_a_bit_field fields: off=64 size=1 of struct request (mode) is not granted to be written
EXTENSION { *(volatile __u8 *)((char *)R + 64) = 1; return 0; }

// CASE writes_a_constant fields: off=120 size=4 of struct request is not granted to be written
EXTENSION { *(volatile __u32 *)&R->fixed = 1; return 0; }

// CASE reads_a_member_of_a_union fields: off=104 size=8 of struct request is not granted to be read
EXTENSION { return R->value.number == 1; }

// CASE writes_within_a_name fields: -
EXTENSION { R->name[R->status & 15] = 'x'; return 0; }

// CASE writes_over_the_end_of_a_name fields: off=144 size=23 of struct request (name) is not granted to be written
EXTENSION { char *at = &R->name[R->status & 15]; asm volatile("*(u64 *)(%0 + 0) = %1" ::"r"(at), "r"(1)); return 0; }

// CASE adds_atomically status: BPF_ATOMIC stores into R
EXTENSION { __sync_fetch_and_add(&R->status, 1); return 0; }

// CASE swaps_atomically status: BPF_ATOMIC stores into R
EXTENSION { return __sync_lock_test_and_set(&R->status, 1) == 5; }

// ---- Pointers ----

// CASE follows_a_null_pointer fields: R1 invalid mem access 'host_ptr_or_null'
EXTENSION { return R->peer->port == 1; }

// CASE follows_a_tested_pointer fields: -
EXTENSION { struct peer *p = R->peer; return p && p->port == 1; }

// CASE follows_a_pointer_that_is_never_null fields: -
EXTENSION { return R->owner->port == 1; }

// CASE tests_one_pointer_and_follows_another fields: invalid mem access 'host_ptr_or_null'
EXTENSION { struct peer *volatile *at = (void *)&R->peer; struct peer *p = *at, *q = *at; return p && q->port == 1; }

// CASE moves_a_pointer_before_the_test fields: pointer arithmetic on
EXTENSION { char *p = (char *)R->peer; asm volatile("%0 += 4" : "+r"(p)); return p && *(volatile __u32 *)(p - 4) == 1; }

// CASE reads_what_a_pointer_hides fields: off=4 size=4 of struct peer is not granted to be read
EXTENSION { return R->owner->secret == 1; }

// CASE writes_a_pointer next: is not granted to be written
EXTENSION { R->next = (struct request *)R; return 0; }

// CASE reads_a_pointer_in_parts next: is a pointer, which is read whole
EXTENSION { return *(volatile __u32 *)&R->next == 1; }

// CASE reads_a_pointer_at_an_offset_that_varies next: is a pointer, which is read whole
EXTENSION
{
	struct request *forged;
	__u64 at = R->method & 4;
	char *place = (char *)&R->next + at;

	asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(forged) : "r"(place));
	return forged && forged->method == 1;
}

// CASE reads_a_byte_of_a_pointer_at_an_offset_that_varies next: is a pointer, which is read whole
EXTENSION
{
	struct request *forged;
	__u64 at = R->method & 7;
	char *place = (char *)&R->next + at;

	asm volatile("%0 = *(u8 *)(%1 + 0)" : "=r"(forged) : "r"(place));
	return forged && forged->method == 1;
}

// CASE follows_a_number fields: R1 invalid mem access 'scalar'
EXTENSION { return *(volatile int *)R->number.whole == 1; }

// CASE follows_an_argument_that_is_a_number plain: invalid mem access 'scalar'
EXTENSION { return *(volatile int *)(long)ctx->flags == 1; }

// CASE follows_an_argument_that_is_not_tested plain: invalid mem access 'host_ptr_or_null'
EXTENSION { return *(volatile char *)ctx->why == 1; }

// CASE follows_an_argument_of_which_nothing_is_granted plain: off=0 size=1 of char is not granted to be read
EXTENSION { return ctx->why && *(volatile char *)ctx->why == 1; }

// CASE reads_an_argument_too_many plain: an extension reads only arguments that the entry's function has
EXTENSION { return ((volatile __u64 *)ctx)[3] == 1; }

// CASE writes_an_argument plain: invalid bpf_context access
EXTENSION { *(volatile __u64 *)ctx = 1; return 0; }

// CASE reads_an_argument_at_a_return result: an extension reads only arguments
EXTENSION { return ((volatile __u64 *)ctx)[1] == 1 ? 500 : 0; }

// CASE follows_a_result_as_if_it_were_the_argument result: invalid mem access 'scalar'
EXTENSION { return R->method == 1 ? 500 : 0; }

// CASE smuggles_through_a_map next: invalid mem access 'scalar'
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); if (!v) return 0; *v = (__u64)R; asm volatile("" ::: "memory"); return ((struct request *)*v)->method == 1; }

// CASE smuggles_through_a_global next: invalid mem access 'scalar'
struct request *volatile kept;
EXTENSION { kept = R; return kept->method == 1; }

// CASE smuggles_as_a_key plain: type=host_ptr expected=
EXTENSION { return bpf_map_lookup_elem(&words, R) != 0; }

// CASE smuggles_as_a_value plain: type=host_ptr expected=
EXTENSION { __u32 k = 0; bpf_map_update_elem(&words, &k, R, 0); return 0; }

// CASE has_a_helper_write_into_the_host status: type=host_ptr expected=
EXTENSION { return bpf_snprintf((char *)&R->status, 4, "x", 0, 0) == 5; }

// CASE smuggles_half_of_a_spilled_pointer plain: R
EXTENSION
{
	volatile __u64 slot[1];
	struct request *r = R;

	asm volatile("*(u64 *)(%0 + 0) = %1; *(u32 *)(%0 + 0) = %2" ::"r"(slot), "r"(r), "r"(77) : "memory");
	return ((struct request *)slot[0])->method == 1;
}

// CASE smuggles_through_a_tail_call plain: the class does not allow it
EXTENSION { bpf_tail_call(ctx, &programs, 0); return 0; }

// CASE smuggles_to_a_global_subprogram plain: R
__noinline int reads(struct request *r) { return r ? *(volatile int *)&r->secret : 0; }
EXTENSION { return reads(R) == 1; }

// CASE passes_to_a_static_subprogram plain: off=12 size=4 of struct request is not granted to be read
static __noinline int reads(struct request *r) { return *(volatile int *)&r->secret; }
EXTENSION { return reads(R) == 1; }

// CASE passes_to_a_callback plain: off=12 size=4 of struct request is not granted to be read
static long each(__u64 i, void *given) { struct request **r = given; return *(volatile int *)&(*r)->secret == i; }
EXTENSION { struct request *r = R; bpf_loop(2, each, &r, 0); return 0; }

// CASE makes_a_pointer_of_a_sum fields: R
EXTENSION { __u64 p = (__u64)R->owner; return *(volatile int *)(p * 2) == 1; }

// CASE adds_two_pointers fields: pointer += pointer prohibited
EXTENSION { char *p = (char *)R, *q = (char *)R->owner; asm volatile("%0 += %1" : "+r"(p) : "r"(q)); return *(volatile int *)p == 1; }

// CASE confuses_two_objects fields: of struct peer is not granted to be read
EXTENSION { struct request *other = (struct request *)R->owner; return other->method == 1; }

// CASE shifts_a_pointer fields: R
EXTENSION { char *p = (char *)R; asm volatile("%0 <<= 1; %0 >>= 1" : "+r"(p)); return *(volatile int *)p == 1; }

// ---- Unions ----

// CASE reads_a_member_unchecked unions: It may be read after a check: tagged.value.number if kind (off=
EXTENSION { return R->tagged.value.number == 1; }

// CASE reads_a_member_after_a_check unions: -
EXTENSION { return R->tagged.kind == 1 && R->tagged.value.number == 1; }

// CASE reads_a_member_where_the_union_has_another unions: It may be read after a check
EXTENSION { volatile long *n = &R->tagged.value.number; return R->tagged.kind == 5 && *n == 1; }

// CASE reads_a_member_where_the_check_failed unions: It may be read after a check
EXTENSION { volatile long *n = &R->tagged.value.number; return R->tagged.kind != 1 && *n == 1; }

// CASE reads_a_member_where_only_some_paths_check unions: It may be read after a check
EXTENSION { volatile long *n = &R->tagged.value.number; volatile __u32 *k = &R->tagged.kind; if (R->method == 1 && *k != 1) return 0; return *n == 1; }

// CASE reads_a_member_after_a_check_of_a_part unions: It may be read after a check
EXTENSION { volatile __u8 *k = (void *)&R->tagged.kind; return *k == 1 && R->tagged.value.number == 1; }

// CASE reads_a_member_after_a_check_that_is_too_wide unions: tagged.value.text.length if kind (off=
EXTENSION { volatile __u64 *n = &R->tagged.value.text.length; volatile __u32 *k = &R->tagged.kind; __u32 kind = *k; return kind >= 3 && kind <= 5 && *n == 1; }

// CASE reads_a_member_for_a_range_of_values unions: -
EXTENSION { volatile __u64 *n = &R->tagged.value.text.length; volatile __u32 *k = &R->tagged.kind; __u32 kind = *k; return kind >= 3 && kind <= 4 && *n == 1; }

// CASE reads_a_member_for_a_range_of_bytes unions: -
EXTENSION { volatile long *n = &R->small.of.a; volatile __u8 *k = &R->small.which; __u8 kind = *k; return kind >= 3 && kind <= 4 && *n == 1; }

// CASE reads_a_member_for_a_range_of_bytes_that_is_too_wide unions: small.of.a if which (off=
EXTENSION { volatile long *n = &R->small.of.a; volatile __u8 *k = &R->small.which; __u8 kind = *k; return kind >= 3 && kind <= 5 && *n == 1; }

// CASE reads_a_member_outside_of_a_range unions: tagged.value.text.length if kind (off=
EXTENSION { volatile __u64 *n = &R->tagged.value.text.length; volatile __u32 *k = &R->tagged.kind; __u32 kind = *k; return (kind < 3 || kind > 4) && *n == 1; }

// CASE follows_a_pointer_of_a_union_unchecked unions: R
EXTENSION { struct peer *p = R->tagged.value.peer; return p && p->port == 1; }

// CASE follows_a_pointer_of_a_union_where_it_is_a_number unions: invalid mem access 'scalar'
EXTENSION { struct peer *volatile *at = &R->tagged.value.peer; if (R->tagged.kind != 1) return 0; struct peer *p = *at; return p && p->port == 1; }

// CASE follows_a_pointer_of_a_union_after_a_check unions: -
EXTENSION { if (R->tagged.kind != 2) return 0; struct peer *p = R->tagged.value.peer; return p && p->port == 1; }

// CASE follows_a_pointer_of_a_union_untested unions: invalid mem access 'host_ptr_or_null'
EXTENSION { return R->tagged.kind == 2 && R->tagged.value.peer->port == 1; }

// CASE writes_a_member_unchecked unions: It may be written after a check: tagged.value.number if kind
EXTENSION { R->tagged.value.number = 4096; return 0; }

// CASE writes_a_number_where_the_union_has_a_pointer unions: It may be written after a check
EXTENSION { if (R->tagged.kind != 2) return 0; R->tagged.value.number = 4096; return R->tagged.value.peer != 0; }

// CASE writes_a_member_after_a_check unions: -
EXTENSION { if (R->tagged.kind != 1) return 0; R->tagged.value.number = 4096; return *(volatile long *)&R->tagged.value.number == 7; }

// CASE writes_the_discriminator_of_a_pointer unions: (tagged.kind) is not granted to be written
EXTENSION { R->tagged.kind = 2; return 0; }

// CASE makes_a_slice_of_a_union_unchecked unions: It may be read after a check: tagged.value.text.data if kind
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)&R->tagged.value.text.data, 0, &d) == 1; }

// CASE makes_a_slice_of_a_union_after_a_check unions: -
EXTENSION { struct bpf_dynptr d; if (R->tagged.kind != 4) return 0; return ring3_dynptr_from_slice((void *)&R->tagged.value.text.data, 0, &d) == 1; }

// CASE reads_a_member_after_a_call unions: It may be read after a check
extern int answer(struct request *r, int status) __ksym;
EXTENSION { if (R->tagged.kind != 1) return 0; answer(R, 500); return R->tagged.value.number == 1; }

// CASE reads_a_member_after_a_call_and_another_check unions: -
extern int answer(struct request *r, int status) __ksym;
EXTENSION { volatile __u32 *k = &R->tagged.kind; if (*k != 1) return 0; answer(R, 500); return *k == 1 && R->tagged.value.number == 1; }

// CASE reads_a_member_after_a_call_in_a_callback unions: It may be read after a check
extern int answer(struct request *r, int status) __ksym;
static long each(__u64 i, void *given) { struct request **r = given; answer(*r, 500); return 0; }
EXTENSION { struct request *r = R; if (r->tagged.kind != 1) return 0; bpf_loop(2, each, &r, 0); return R->tagged.value.number == 1; }

// CASE reads_a_member_after_a_call_in_a_subprogram unions: It may be read after a check
extern int answer(struct request *r, int status) __ksym;
static __noinline int calls(struct request *r) { return answer(r, 500); }
EXTENSION { struct request *r = R; if (r->tagged.kind != 1) return 0; calls(r); return r->tagged.value.number == 1; }

// CASE reads_a_member_after_a_check_in_a_subprogram unions: -
static __noinline int number(struct request *r) { return r->tagged.value.number == 1; }
EXTENSION { struct request *r = R; return r->tagged.kind == 1 && number(r); }

// CASE reads_a_member_after_a_write_of_the_discriminator unions: It may be read after a check: choice.of.a if which (off=
EXTENSION { volatile int *w = &R->choice.which; if (*w != -1) return 0; *w = 5; return R->choice.of.a == 1; }

// CASE reads_a_member_after_a_write_of_a_part_of_the_discriminator unions: It may be read after a check
EXTENSION { volatile int *w = &R->choice.which; if (*w != -1) return 0; ((volatile __u8 *)w)[3] = 5; return R->choice.of.a == 1; }

// CASE reads_a_member_after_a_write_and_another_check unions: -
EXTENSION { volatile int *w = &R->choice.which; if (*w != -1) return 0; *w = 5; return *w == -1 && R->choice.of.a == 1; }

// CASE reads_a_member_after_a_write_of_something_else unions: -
EXTENSION { volatile int *w = &R->choice.which; if (*w != -1) return 0; R->status = 5; return R->choice.of.a == 1; }

// CASE checks_one_union_and_reads_another unions: It may be read after a check
EXTENSION { return R->tag->kind == 1 && R->tagged.value.number == 1; }

// CASE reads_a_member_behind_a_pointer_after_a_check unions: -
EXTENSION { struct tagged *t = R->tag; return t->kind == 1 && t->value.number == 1; }

// CASE checks_one_pointer_and_reads_behind_another unions: It may be read after a check: value.number if kind
EXTENSION { struct tagged *volatile *at = (void *)&R->tag; struct tagged *a = *at, *b = *at; return a->kind == 1 && b->value.number == 1; }

// CASE checks_what_the_same_instruction_loaded_before unions: It may be read after a check
static __noinline struct tagged *tag_of(struct request *r) { return *(struct tagged *volatile *)&r->tag; }
EXTENSION { struct tagged *a = tag_of(R); if (a->kind != 1) return 0; struct tagged *b = tag_of(R); return b->value.number == 1; }

// CASE reads_an_older_pointer_of_the_same_instruction unions: It may be read after a check
static __noinline struct tagged *tag_of(struct request *r) { return *(struct tagged *volatile *)&r->tag; }
EXTENSION { struct tagged *a = tag_of(R), *b = tag_of(R); if (b->kind != 1) return 0; return a->value.number == 1; }

// CASE checks_another_object_that_a_function_gives unions: It may be read after a check
extern struct request *find(unsigned int id) __ksym;
EXTENSION { struct request *f = find(1); return f && f->tag->kind == 1 && R->tagged.value.number == 1; }

// CASE keeps_a_check_over_a_loop_that_calls unions: It may be read after a check
extern int answer(struct request *r, int status) __ksym;
EXTENSION { struct request *r = R; int m = r->method; if (r->tagged.kind != 1) return 0; while (BOUNDED) { if (r->tagged.value.number == m) return 1; answer(r, 500); } return 0; }

// ---- Slices ----

// CASE reads_a_slices_pointer texts: leads to elements that are counted elsewhere; use ring3_dynptr_from_slice
EXTENSION { return R->uri.data == 0; }

// CASE follows_a_slices_pointer texts: leads to elements that are counted elsewhere; use ring3_dynptr_from_slice
EXTENSION { return R->uri.data[0] == 1; }

// CASE writes_a_slices_length texts: off=16 size=8 of struct request (uri.length) is not granted to be written
EXTENSION { R->uri.length = 1000; return 0; }

// CASE writes_a_slices_pointer texts: is not granted to be written
EXTENSION { R->uri.data = 0; return 0; }

// CASE makes_a_slice_of_a_length texts: is no slice that the class grants to be read
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)&R->uri.length, 0, &d) == 1; }

// CASE makes_a_slice_of_a_pointer fields: is no slice that the class grants to be read
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)&R->owner, 0, &d) == 1; }

// CASE makes_a_slice_of_an_ungranted_one plain: is no slice that the class grants to be read
// ALSO texts
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d) == 1; }

// CASE makes_a_slice_of_own_memory texts: expected=host_ptr
EXTENSION { struct text t = { 1 << 20, (char *)4096 }; struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)&t.data, 0, &d) == 1; }

// CASE makes_a_slice_at_an_offset_that_varies texts: a slice's field has to be at a known offset
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((char *)R + 24 + (R->method & 16), 0, &d) == 1; }

// CASE makes_a_slice_through_a_null_pointer fields: type=host_ptr_or_null expected=host_ptr
EXTENSION { struct bpf_dynptr d; return ring3_dynptr_from_slice((void *)R->pair, 0, &d) == 1; }

// CASE makes_slices_of_two_fields_at_one_place texts: same insn cannot be used with different fields of the host
EXTENSION { struct bpf_dynptr d; char *at = R->method == 1 ? (char *)&R->uri.data : (char *)&R->body.data; asm volatile("" : "+r"(at)); return ring3_dynptr_from_slice(at, 0, &d) == 1; }

// CASE follows_a_slices_memory_unchecked texts: invalid mem access 'mem_or_null'
EXTENSION { struct bpf_dynptr d; char *p; ring3_dynptr_from_slice((void *)&R->body.data, 0, &d); p = bpf_dynptr_data(&d, 0, 4); return *(volatile char *)p == 1; }

// CASE follows_a_slices_memory_over_the_end texts: invalid access to memory, mem_size=4 off=4 size=1
EXTENSION { struct bpf_dynptr d; char *p; ring3_dynptr_from_slice((void *)&R->body.data, 0, &d); p = bpf_dynptr_data(&d, 0, 4); return p && ((volatile char *)p)[4] == 1; }

// CASE reads_a_slice_into_too_little texts: R
EXTENSION { struct bpf_dynptr d; char room[8]; ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d); return bpf_dynptr_read(room, 64, &d, 0, 0) == 1; }

// CASE reads_a_slice_into_the_host texts: type=host_ptr expected=
EXTENSION { struct bpf_dynptr d; ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d); return bpf_dynptr_read(R, 4, &d, 0, 0) == 1; }

// CASE forges_a_dynptr texts: R
EXTENSION { struct bpf_dynptr d; char room[4]; ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d); *(volatile __u64 *)&d = 4096; return bpf_dynptr_read(room, 4, &d, 0, 0) == 1; }

// CASE makes_a_dynptr_of_the_host texts: R
EXTENSION { struct bpf_dynptr d; return bpf_dynptr_from_mem((void *)R, 64, 0, &d) == 1; }

// ---- Variables ----

// CASE names_a_variable_that_is_not_granted globals: secret_global
extern long secret_global __ksym;
EXTENSION { return secret_global == 1; }

// CASE writes_a_variable_that_may_be_read globals: off=0 size=4 of 
extern int limit __ksym;
EXTENSION { *(volatile int *)&limit = 1; return 0; }

// CASE reads_over_the_end_of_a_variable globals: is not granted to be read
extern int limit __ksym;
EXTENSION { return *(volatile __u64 *)&limit == 1; }

// CASE reads_beside_a_variable globals: R
extern long load __ksym;
EXTENSION { return (&load)[1] == 1; }

// CASE writes_a_variable_with_another_class plain: load
// ALSO globals
extern long load __ksym;
EXTENSION { load = 5; return 0; }

// CASE follows_a_variable_unchecked globals: invalid mem access 'host_ptr_or_null'
extern struct peer *current __ksym;
EXTENSION { return current->port == 1; }

// CASE reads_what_a_variable_hides globals: off=4 size=4 of struct peer is not granted to be read
extern struct peer *current __ksym;
EXTENSION { return current && current->secret == 1; }

// ---- Functions of the host ----

// CASE calls_a_function_that_is_not_granted plain: answer
// ALSO answers
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer(R, 500); return 0; }

// CASE calls_a_function_that_its_class_lacks calls: forbidden
// ALSO answers
extern void forbidden(struct request *r) __ksym;
EXTENSION { forbidden(R); return 0; }

// CASE calls_a_function_that_no_class_has answers: undeclared
extern void undeclared(struct request *r) __ksym;
EXTENSION { undeclared(R); return 0; }

// CASE calls_a_function_of_the_c_library answers: system
extern int system(const char *what) __ksym;
EXTENSION { return system("true"); }

// CASE calls_with_a_number_that_is_too_great answers: R2 argument 2 of answer has to be in 400..=599, and may be 600..=600 here
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer(R, 600); return 0; }

// CASE calls_with_any_number answers: R2 argument 2 of answer has to be in 400..=599
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer(R, R->method); return 0; }

// CASE calls_with_a_tested_number answers: -
extern int answer(struct request *r, int status) __ksym;
EXTENSION { volatile long m = R->method; long n = m; if (n >= 400 && n < 600) answer(R, n); return 0; }

// CASE calls_with_bits_above_the_number calls: R1 argument 1 of twice has to be in 0..=100
extern long twice(long number) __ksym;
EXTENSION { __u64 m = (__u32)R->method; if (m > 100) return 0; twice(m | 1ul << 40); return 0; }

// CASE calls_with_a_pointer_as_a_number calls: R1 type=host_ptr expected=scalar for twice
extern long twice(struct request *r) __ksym;
EXTENSION { twice(R); return 0; }

// CASE calls_with_null nullable: R1 type=scalar expected=host_ptr for answer
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer(0, 500); return 0; }

// CASE calls_with_a_pointer_that_may_be_null nullable: R1 may be null, which answer does not allow
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer(R, 500); return 0; }

// CASE calls_with_null_where_that_is_allowed nullable: -
extern void maybe(struct request *r) __ksym;
EXTENSION { maybe(0); maybe(R); return 0; }

// CASE calls_with_a_pointer_into_an_object answers: R1 points into a struct request, and answer wants its start
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer((void *)&R->method, 500); return 0; }

// CASE calls_with_another_type calls: R1 is a struct peer, which is not what answer wants
extern int answer(struct request *r, int status) __ksym;
EXTENSION { struct peer *p = R->peer; if (p) answer((void *)p, 500); return 0; }

// CASE calls_with_a_request_as_a_peer calls: R1 is a struct request, which is not what use_peer wants
extern void use_peer(struct peer *peer) __ksym;
EXTENSION { use_peer((void *)R); return 0; }

// CASE calls_with_a_maps_value answers: R1 type=map_value expected=host_ptr for answer
extern int answer(struct request *r, int status) __ksym;
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); if (v) answer((void *)v, 500); return 0; }

// CASE calls_with_its_stack answers: R1 type=fp expected=host_ptr for answer
extern int answer(struct request *r, int status) __ksym;
EXTENSION { struct request r = {}; answer(&r, 500); return 0; }

// CASE calls_with_its_context answers: R1 type=ctx expected=host_ptr for answer
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer((void *)ctx, 500); return 0; }

// CASE calls_with_a_number_as_a_pointer answers: R1 type=scalar expected=host_ptr for answer
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer((void *)(long)ctx->flags, 500); return 0; }

// CASE follows_a_result_unchecked calls: invalid mem access 'host_ptr_or_null'
extern struct request *find(unsigned int id) __ksym;
EXTENSION { return find(1)->method == 1; }

// CASE uses_a_result_as_more_than_it_is calls: R
extern long twice(long number) __ksym;
EXTENSION { long n = twice(5); return *(volatile int *)n == 1; }

// CASE calls_with_a_record_reserved answers: give back what is reserved before answer is called
extern int answer(struct request *r, int status) __ksym;
EXTENSION { __u64 *v = bpf_ringbuf_reserve(&ring, 8, 0); if (!v) return 0; answer(R, 500); bpf_ringbuf_submit(v, 0); return 0; }

// ---- Helpers ----

// CASE reads_by_an_address plain: bpf_probe_read_user#112: the class does not allow it
// ALSO reads
EXTENSION { char b; return bpf_probe_read_user(&b, 1, &R->secret) == 5; }

// CASE reads_by_an_address_as_the_kernel plain: bpf_probe_read_kernel#113: the class does not allow it
EXTENSION { char b; return bpf_probe_read_kernel(&b, 1, &R->secret) == 5; }

// CASE writes_by_an_address plain: bpf_probe_write_user#36: the class does not allow it
EXTENSION { int b = 1; return bpf_probe_write_user(&R->secret, &b, 4) == 5; }

// CASE sends_a_signal plain: bpf_send_signal#109: the class does not allow it
EXTENSION { return bpf_send_signal(9) == 5; }

// CASE overrides_the_result plain: bpf_override_return#58
EXTENSION { bpf_override_return((void *)ctx, 5); return 0; }

// CASE asks_for_the_process plain: the class does not allow it
EXTENSION { return bpf_get_current_pid_tgid() == 5; }

// CASE asks_for_the_stack plain: the class does not allow it
EXTENSION { char b[64]; return bpf_get_stack(ctx, b, 64, 0) == 5; }

// CASE uses_maps_without_the_right bare: bpf_map_lookup_elem#1: the class does not allow it
// ALSO plain
EXTENSION { __u32 k = 0; return bpf_map_lookup_elem(&words, &k) != 0; }

// CASE strings_at_any_address plain: bpf_strlen
extern int bpf_strlen(const char *s) __ksym;
EXTENSION { return bpf_strlen((const char *)ctx->why) == 5; }

// ---- Results ----

// CASE returns_what_the_entry_has_not plain: At program exit the register R0 may be 2..=2; the entry has verdicts for 0..=0 1..=1 400..=599
EXTENSION { return 2; }

// CASE returns_a_number_of_the_host plain: At program exit the register R0 may be
EXTENSION { return R->method; }

// CASE returns_a_pointer plain: At program exit the register R0 is not a known value (host_ptr)
EXTENSION { long r = (long)R; long n; asm volatile("%0 = %1" : "=r"(n) : "r"(r)); return n; }

// CASE returns_more_than_32_bits plain: At program exit the register R0 may be
EXTENSION { long n; asm volatile("%0 = 1; %0 <<= 32" : "=r"(n)); return n; }

// CASE skips_where_it_may_only_look result: At program exit the register R0 may be 1..=1; the entry has verdicts for 0..=0 500..=600
// ALSO plain
EXTENSION { return 1; }

// ---- Limits ----

// CASE has_too_many_maps small: allows 1 maps, and the extension has 2: words, more
// ALSO big
EXTENSION { __u32 k = 0; return bpf_map_lookup_elem(&words, &k) && bpf_map_lookup_elem(&more, &k); }

// CASE has_too_large_a_map small: allows maps of 4096 bytes, and those of the extension have
// ALSO big
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1000); __type(key, __u32); __type(value, __u64); } large SEC(".maps");
EXTENSION { __u32 k = 0; return bpf_map_lookup_elem(&large, &k) == 0; }

// CASE has_too_large_a_buffer small: allows maps of 4096 bytes, and those of the extension have 65536
// ALSO big
struct { __uint(type, BPF_MAP_TYPE_USER_RINGBUF); __uint(max_entries, 65536); } asked SEC(".maps");
EXTENSION { return (long)&asked == 5; }

// CASE has_a_map_of_more_bytes_than_there_are big: allows maps of 1048576 bytes, and those of the extension have
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 0xffffffff); __uint(key_size, 4); __uint(value_size, 0xfffffff8); } huge SEC(".maps");
EXTENSION { __u32 k = 0; return bpf_map_lookup_elem(&huge, &k) == 0; }

// CASE takes_too_many_instructions small: instructions, and class
// ALSO big
EXTENSION { long n = 0; asm volatile(".rept 1100; %0 += 1; .endr" : "+r"(n)); return n == 5; }

// CASE never_ends plain: infinite loop detected
EXTENSION { asm volatile goto("if r1 == 0 goto %l[out]; 1: goto 1b" ::::out); out: return 0; }

// CASE ends_the_protection_of_maps plain: the instruction that ends the protection of maps
EXTENSION { volatile long kept = 0xef010f; return kept == 1; }

// ---- Ways round ----

// CASE reads_a_slice_by_a_length_of_the_host texts: R2 
EXTENSION { struct bpf_dynptr d; char room[8]; volatile __u64 *n = &R->uri.length; ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d); return bpf_dynptr_read(room, *n, &d, 0, 0) == 1; }

// CASE sends_memory_of_the_host_by_a_ring_buffer plain: R2 type=host_ptr expected=
EXTENSION { return bpf_ringbuf_output(&ring, R, 64, 0) == 1; }

// CASE parses_memory_of_the_host fields: R1 type=host_ptr expected=
EXTENSION { long n = 0; return bpf_strtol(R->name, 16, 0, &n) == 1; }

// CASE compares_memory_of_the_host fields: R1 type=host_ptr expected=
EXTENSION { return bpf_strncmp(R->name, 16, "a name") == 1; }

// CASE swaps_a_pointer_in_the_context_of_a_callback plain: R1 invalid mem access 'scalar'
static long each(__u64 i, void *given) { struct request *volatile *r = given; int m = (*r)->method; *r = (struct request *)4096; return m == 1; }
EXTENSION { struct request *volatile r = R; bpf_loop(2, each, (void *)&r, 0); return 0; }

// CASE swaps_a_pointer_in_a_loop plain: invalid mem access 'scalar'
EXTENSION { struct request *volatile r = R; int n = 0; while (BOUNDED) { n += r->method; r = (struct request *)(long)n; } return n == 1; }

// CASE joins_two_objects_before_an_access fields: off=8 size=4 of struct peer is not granted to be read
EXTENSION { char *at = R->method == 1 ? (char *)R : (char *)R->owner; asm volatile("" : "+r"(at)); return *(volatile __u32 *)(at + 8) == 1; }

// CASE exchanges_a_spilled_pointer plain: R
EXTENSION { struct request *volatile r = R; __sync_lock_test_and_set((__u64 *)&r, 4096); return r->method == 1; }

// CASE exchanges_a_pointer_in_a_map plain: invalid mem access 'scalar'
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); if (!v) return 0; __sync_lock_test_and_set(v, (__u64)R); struct request *r = (struct request *)__sync_lock_test_and_set(v, 0); return r->method == 1; }

// CASE reads_parts_of_two_spilled_pointers plain: R
EXTENSION
{
	struct request *r = R;
	struct request *forged;

	asm volatile("*(u64 *)(r10 - 8) = %1; *(u64 *)(r10 - 16) = %1; %0 = *(u64 *)(r10 - 12)" : "=r"(forged) : "r"(r) : "memory");
	return forged->method == 1;
}

// CASE takes_a_half_of_a_pointer plain: R
EXTENSION { struct request *r = R; asm volatile("r3 = %0; w3 = w3; %0 = r3" : "+r"(r)::"r3"); return r->method == 1; }

// CASE calls_with_an_iterator_open answers: give back what is reserved before answer is called
extern int answer(struct request *r, int status) __ksym;
struct bpf_iter_num { __u64 opaque; };
extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;
EXTENSION { struct bpf_iter_num it; bpf_iter_num_new(&it, 0, 3); while (bpf_iter_num_next(&it)) answer(R, 500); bpf_iter_num_destroy(&it); return 0; }

// CASE calls_with_a_dynptr_reserved answers: give back what is reserved before answer is called
extern int answer(struct request *r, int status) __ksym;
EXTENSION { struct bpf_dynptr d; bpf_ringbuf_reserve_dynptr(&ring, 8, 0, &d); answer(R, 500); bpf_ringbuf_discard_dynptr(&d, 0); return 0; }

// CASE reads_what_a_result_hides calls: off=12 size=4 of struct request is not granted to be read
extern struct request *find(unsigned int id) __ksym;
EXTENSION { struct request *f = find(1); return f && f->secret == 1; }

// CASE indexes_the_context plain: R
EXTENSION { __u32 i = R->method & 1; return ((volatile __u64 *)ctx)[i] == 1; }

// CASE calls_itself_for_ever plain: the call stack of
static __noinline int deeper(int n) { asm volatile("" : "+r"(n)); int deep = deeper(n + 1); asm volatile("" : "+r"(deep)); return deep + n; }
EXTENSION { return deeper(R->method) == 1; }

// CASE arms_a_timer plain: bpf_timer_init#169: the agent does not have it
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, struct bpf_timer); } timers SEC(".maps");
EXTENSION { __u32 k = 0; struct bpf_timer *t = bpf_map_lookup_elem(&timers, &k); return t && bpf_timer_init(t, &timers, 1) == 1; }

// CASE passes_to_a_callback_of_a_map plain: R3 type=host_ptr expected=fp
static long each(void *map, void *key, void *value, void *given) { return ((volatile struct request *)given)->secret == 1; }
EXTENSION { bpf_for_each_map_elem(&words, each, R, 0); return 0; }

// CASE calls_with_a_pointer_at_an_offset_that_varies calls: points into a struct request, and answer wants its start
extern int answer(struct request *r, int status) __ksym;
EXTENSION { answer((void *)((char *)R + (R->method & 8)), 500); return 0; }

// CASE keeps_memory_of_a_slice_that_was_replaced texts: R
EXTENSION
{
	struct bpf_dynptr d;
	char *p;

	ring3_dynptr_from_slice((void *)&R->body.data, 0, &d);
	p = bpf_dynptr_data(&d, 0, 8);
	ring3_dynptr_from_slice((void *)&R->uri.data, 0, &d);
	return p && p[7] == 1;
}

// CASE makes_a_dynptr_of_a_slices_memory texts: R
EXTENSION { struct bpf_dynptr d, e; char *p; ring3_dynptr_from_slice((void *)&R->body.data, 0, &d); p = bpf_dynptr_data(&d, 0, 4); if (!p) return 0; bpf_dynptr_from_mem(p, 64, 0, &e); return bpf_dynptr_write(&e, 0, "x", 1, 0) == 1; }

// CASE loads_a_pointer_and_swaps_its_bytes next: pointer arithmetic on host_ptr_or_null prohibited
EXTENSION { __u64 p = (__u64)R->next; p = __builtin_bswap64(__builtin_bswap64(p) ^ 1); return ((struct request *)p)->method == 1; }

// CASE stores_a_pointer_of_its_own_into_the_host status: R
EXTENSION { __u64 own = 0; struct request *r = R; asm volatile("*(u64 *)(%0 + 40) = %1" ::"r"(r), "r"(&own) : "memory"); return 0; }

// CASE answers_with_a_status_of_the_host answers: R2 argument 2 of answer has to be in 400..=599
extern int answer(struct request *r, int status) __ksym;
EXTENSION { __s32 m = R->method; if (m < 600) answer(R, m); return 0; }
