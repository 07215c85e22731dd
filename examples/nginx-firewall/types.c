// SPDX-License-Identifier: MIT OR Apache-2.0
// nginx's types, for ring3: compiled with -g against the headers that nginx was built from.
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

ngx_http_request_t *request;
ngx_http_phase_handler_t *phase;
