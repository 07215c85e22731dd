// SPDX-License-Identifier: MIT OR Apache-2.0
// The firewall of examples/nginx-firewall as a module of nginx: the same search, compiled by a C compiler, in the server itself.
// `firewall FILE;` in `http` reads the rules.
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <linux/types.h>

#define BOUNDED 1
struct pattern;
static const struct pattern *find_pattern(__u32 window);

#include "match.h"

#define SLOTS 4096

static struct pattern patterns[SLOTS];
static __u32 windows[SLOTS];
static struct triples triples;
static struct text texts[2];

static __u32 *slot_of(__u32 window)
{
	__u32 at = window * 2654435761u >> 20;

	while (windows[at] && windows[at] != window)
		at = (at + 1) % SLOTS;
	return &windows[at];
}

static inline const struct pattern *find_pattern(__u32 window)
{
	__u32 *slot = slot_of(window);

	return *slot ? &patterns[slot - windows] : NULL;
}

// As in `rules`.
static int common(char letter)
{
	if (strchr("aeiounstrl/", letter))
		return 3;
	if (strchr("cdfghmpbvwy0123456789=&.-", letter))
		return 2;
	return (letter >= 'a' && letter <= 'z') || strchr("_ ,:;?%", letter);
}

static void mark(__u32 bytes)
{
	triples.bits[triple_hash(bytes) >> 23] |= 1ull << (triple_hash(bytes) >> 17 & 63);
	for (int i = 0; i < 24; i += 8)
		if ((bytes >> i & 0xff) == ' ')
			mark(bytes ^ (__u32)(' ' ^ '+') << i);
}

static void add(const char *text)
{
	size_t length = strlen(text), best = 0;
	__u32 window = 0, *slot;
	int least = 1000;
	struct pattern *pattern;

	for (size_t at = 0; at + WINDOW <= length; at++) {
		__u32 here = half_at(text + at) | (__u32)EACH_BYTE(FOLD);
		int score = 0;

		for (int i = 0; i < WINDOW; i++)
			score += common(text[at + i]);
		if (score >= least || *slot_of(here))
			continue;
		best = at;
		least = score;
		window = here;
	}
	if (!window)
		return;
	slot = slot_of(window);
	*slot = window;
	pattern = &patterns[slot - windows];
	memcpy(pattern->text, text, length);
	memset(pattern->mask, 0xff, length);
	pattern->window_at = best;
	mark(window & 0xffffff);
	mark(window >> 8);
}

static ngx_int_t is_refused(const ngx_str_t *slice)
{
	struct text *text = &texts[0];

	if (slice->len < WINDOW)
		return 0;
	if (slice->len > TEXT_MAX)
		return 1;
	memcpy(text->bytes, slice->data, slice->len);
	memset(&text->bytes[slice->len], PADDING, PATTERN_MAX + 8);
	text->length = slice->len;
	return search_all(text, &texts[1], &triples) == FORBIDDEN_FOUND;
}

static ngx_int_t check(ngx_http_request_t *r)
{
	size_t plain_length = r->uri.len + r->args.len + (r->args.len != 0);
	ngx_table_elt_t *agent = r->headers_in.user_agent;

	if (is_refused(&r->unparsed_uri) || (r->unparsed_uri.len != plain_length && is_refused(&r->uri)) ||
	    (agent && is_refused(&agent->value)))
		return NGX_HTTP_FORBIDDEN;
	return NGX_DECLINED;
}

static char *read_rules(ngx_conf_t *cf, ngx_command_t *command, void *conf)
{
	ngx_str_t *words = cf->args->elts;
	FILE *file = fopen((char *)words[1].data, "r");
	char line[256];

	if (!file)
		return "cannot read its file";
	while (fgets(line, sizeof(line), file)) {
		size_t length = strcspn(line, "\n");

		line[length] = 0;
		if (length < WINDOW || length > PATTERN_MAX || line[0] == '#')
			continue;
		for (char *at = line; *at; at++)
			*at = *at == '+' ? ' ' : ngx_tolower(*at);
		add(line);
	}
	fclose(file);
	return NGX_CONF_OK;
}

static ngx_int_t begin(ngx_conf_t *cf)
{
	ngx_http_core_main_conf_t *core = ngx_http_conf_get_module_main_conf(cf, ngx_http_core_module);
	ngx_http_handler_pt *handler = ngx_array_push(&core->phases[NGX_HTTP_ACCESS_PHASE].handlers);

	if (!handler)
		return NGX_ERROR;
	*handler = check;
	return NGX_OK;
}

static ngx_command_t commands[] = {
	{ ngx_string("firewall"), NGX_HTTP_MAIN_CONF | NGX_CONF_TAKE1, read_rules, 0, 0, NULL },
	ngx_null_command,
};

static ngx_http_module_t context = { NULL, begin, NULL, NULL, NULL, NULL, NULL, NULL };

ngx_module_t ngx_http_firewall_module = {
	NGX_MODULE_V1, &context, commands, NGX_HTTP_MODULE, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING,
};

// What nginx's `configure` would write for a dynamic module.
ngx_module_t *ngx_modules[] = { &ngx_http_firewall_module, NULL };
char *ngx_module_names[] = { "ngx_http_firewall_module", NULL };
char *ngx_module_order[] = { NULL };
