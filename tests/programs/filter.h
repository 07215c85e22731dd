// SPDX-License-Identifier: MIT OR Apache-2.0
#pragma once

enum { REFUSED, RENAMED, MADE, FAILED, COUNTS };
