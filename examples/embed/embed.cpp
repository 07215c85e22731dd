// A server that hosts an eBPF extension: `c++ embed.cpp $(pkg-config --cflags --libs ring3)`, then `./a.out filter.bpf.o`.
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <ring3.h>

#include "request.h"

static int check(int result)
{
	if (result < 0)
		throw std::runtime_error(std::string(ring3_error()) + "\n" + ring3_log());
	return result;
}

template <typename T> static T *check(T *handle)
{
	if (!handle)
		throw std::runtime_error(ring3_error());
	return handle;
}

int main(int argc, char **argv)
try {
	std::unique_ptr<ring3_vm, decltype(&ring3_vm_free)> vm(check(ring3_vm_new()), ring3_vm_free);
	std::string known = "root";

	ring3_parameter parameters[2] = {};
	parameters[0].kind = RING3_POINTER;
	parameters[1].kind = RING3_SIZE;
	parameters[1].bytes = sizeof(request::user);
	ring3_result truth = {};
	truth.greatest = 1;
	check(ring3_set_memory(vm.get(), sizeof(request), 1));
	// (A lambda without captures is a function for C; it must not throw.)
	auto is_known = [](uint64_t user, uint64_t bytes, uint64_t, uint64_t, uint64_t, void *data) -> uint64_t {
		return std::strncmp(reinterpret_cast<const char *>(user), static_cast<std::string *>(data)->c_str(), bytes) == 0;
	};
	check(ring3_register(vm.get(), "is_known", RING3_NO_NUMBER, is_known, &known, parameters, 2, &truth));
	check(ring3_load_file(vm.get(), argc > 1 ? argv[1] : "filter.bpf.o"));

	ring3_program *filter = check(ring3_program_find(vm.get(), "filter"));
	request requests[] = {
		{ 80, 0, "guest", "/index.html" },
		{ 80, 0, "guest", "/admin/users" },
		{ 443, 0, "root", "/admin/users" },
	};
	for (request &request : requests) {
		uint64_t verdict;
		check(ring3_call(filter, &request, sizeof request, &verdict));
		std::cout << request.path << ": " << (verdict == VERDICT_PASS ? "pass" : "refuse") << "\n";
	}

	auto print = [](void *, const void *record, size_t) {
		auto *refused = static_cast<const request *>(record);
		std::cout << "refused: " << refused->path << " of " << refused->user << "\n";
		return 0;
	};
	check(static_cast<int>(ring3_map_consume(check(ring3_map_find(vm.get(), "refused")), print, nullptr)));

	ring3_map *by_port = check(ring3_map_find(vm.get(), "requests_by_port"));
	std::map<uint32_t, uint64_t> counts;
	uint32_t port, last;
	for (int more = check(ring3_map_next_key(by_port, nullptr, &port)); more; more = check(ring3_map_next_key(by_port, &last, &port))) {
		last = port;
		check(ring3_map_lookup(by_port, &port, &counts[port]));
	}
	for (auto [port, count] : counts)
		std::cout << "port " << port << ": " << count << "\n";

	uint64_t seen;
	check(ring3_map_read(check(ring3_map_find(vm.get(), ".bss")), 0, &seen, sizeof seen));
	std::cout << "seen: " << seen << "\n";
} catch (const std::exception &error) {
	std::cerr << error.what() << "\n";
	return 1;
}
