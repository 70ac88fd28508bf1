/* SPDX-License-Identifier: MIT
 *
 * Opens an NCCL: checks it, sets its variables, redirects its calls to CUDA and NVML. One thread at a time; a lock
 * keeps others out.
 */
#include "bagua_net_emulator.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/answers.h"
#include "device/error.h"
#include "device/launch.h"
#include "device/stream.h"
#include "device/topology.h"
#include "elf/redirect.h"
#include "elf/symtab.h"
#include "kernel/kernel.h"
#include "layout/layout.h"

enum { SCALE_KERNELS = 16 };

/* The NCCL of this process. */
static struct {
	pthread_mutex_t lock;
	char path[4096];
	void *handle;
	uintptr_t base;
	int version; /* as ncclGetVersion has it */
	struct emu_symtab symbols;
	/* Kernels for communicators of one rank, and their element types. */
	const void *scale_kernels[SCALE_KERNELS];
	int scale_types[SCALE_KERNELS], scale_count;
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- sentences ---- */

struct text {
	char *at;
	size_t size;
};

__attribute__((format(printf, 2, 3))) static int say(struct text out, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(out.at, out.size, format, arguments);
	va_end(arguments);
	return -1;
}

/* ---- NCCL's variables ---- */

struct setting {
	const char *name, *value;
	bool required; /* another value brings back what the emulated device lacks */
};

static const struct setting settings[] = {
	{"NCCL_CUMEM_ENABLE", "0", true},   {"NCCL_CUMEM_HOST_ENABLE", "0", true}, {"NCCL_NVLS_ENABLE", "0", true},
	{"NCCL_MNNVL_ENABLE", "0", true},   {"NCCL_COLLNET_ENABLE", "0", true},    {"NCCL_GIN_ENABLE", "0", true},
	{"NCCL_P2P_DISABLE", "1", false},   {"NCCL_SHM_DISABLE", "1", false},      {"NCCL_RAS_ENABLE", "0", false},
	{"NCCL_DMABUF_ENABLE", "0", false},
};

static int check_variables(struct text error)
{
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		const char *value = getenv(settings[i].name);

		if (settings[i].required && value != NULL && value[0] != '\0' && strcmp(value, settings[i].value) != 0)
			return say(error,
				   "%s=%s asks for what an emulated GPU does not have; unset it or set it to %s.",
				   settings[i].name, value, settings[i].value);
	}
	return 0;
}

/* An empty value counts as none. */
static void set_default(const char *name, const char *value)
{
	const char *given = getenv(name);

	setenv(name, value, given != NULL && given[0] == '\0');
}

/* Each process is a host of its own, or NCCL would look for paths inside the host and find none. */
static void set_host(void)
{
	char name[256], host[300];

	if (gethostname(name, sizeof(name)) != 0)
		strcpy(name, "host");
	name[sizeof(name) - 1] = '\0';
	snprintf(host, sizeof(host), "%s-%ld", name, (long)getpid());
	set_default("NCCL_HOSTID", host);
}

static int set_variables(struct text error)
{
	char topology[64];
	const int status = emu_topology_write(topology, sizeof(topology));

	if (status != 0)
		return say(error, "The topology file could not be made: %s.", strerror(-status));
	setenv("NCCL_TOPO_FILE", topology, 1);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		set_default(settings[i].name, settings[i].value);
	set_host();
	return 0;
}

/* ---- redirecting ---- */

/* The length-prefixed name that a mangled symbol starts with ("_Z5hellov": "hello"), if it begins with prefix; what
 * follows the prefix, and its length. */
static const char *mangled(const char *symbol, const char *prefix, size_t *length)
{
	char *name;
	const size_t skip = strlen(prefix);

	if (strncmp(symbol, "_Z", 2) != 0 || strchr(symbol, '.') != NULL)
		return NULL;
	*length = strtoul(symbol + 2, &name, 10);
	if (*length < skip || strlen(name) < *length || strncmp(name, prefix, skip) != 0)
		return NULL;
	*length -= skip;
	return name + skip;
}

static emu_function nvml_answer(const char *symbol)
{
	size_t length;
	const char *name = mangled(symbol, "ncclNvml", &length);

	if (name == NULL)
		return NULL;
	for (size_t i = 0; i < emu_nvml_answer_count; i++)
		if (strlen(emu_nvml_answers[i].name) == length && strncmp(emu_nvml_answers[i].name, name, length) == 0)
			return emu_nvml_answers[i].function;
	return (emu_function)emu_absent;
}

/* From 2.21 on NCCL finds CUDA's driver through the runtime; before, this function opens libcuda and complains that it
 * is missing. */
static bool opens_driver(const char *symbol)
{
	return nccl.version < 22100 && strcmp(symbol, "_Z19ncclCudaLibraryInitv") == 0;
}

static emu_function answer(const char *symbol)
{
	if (opens_driver(symbol))
		return (emu_function)emu_absent;
	if (strncmp(symbol, "cuda", 4) == 0)
		for (size_t i = 0; i < emu_runtime_answer_count; i++)
			if (strcmp(emu_runtime_answers[i].name, symbol) == 0)
				return emu_runtime_answers[i].function;
	return nvml_answer(symbol);
}

/* The element type in the name of a kernel such as _ZN…oneRankReduceI13FuncPreMulSumIfEEE…: what follows FuncPreMulSumI
 * is the type as the Itanium C++ ABI writes it. -1: another function. */
static int scaled_type(const char *symbol)
{
	static const struct {
		const char *code;
		enum emu_type type;
	} codes[] = {
		{"a", EMU_INT8},
		{"h", EMU_UINT8},
		{"i", EMU_INT32},
		{"j", EMU_UINT32},
		{"l", EMU_INT64},
		{"m", EMU_UINT64},
		{"f", EMU_FLOAT32},
		{"d", EMU_FLOAT64},
		{"6__half", EMU_FLOAT16},
		{"13__nv_bfloat16", EMU_BFLOAT16},
		{"13__nv_fp8_e4m3", EMU_FLOAT8E4M3},
		{"13__nv_fp8_e5m2", EMU_FLOAT8E5M2},
	};
	const char *operation = strstr(symbol, "FuncPreMulSumI");

	if (operation == NULL || strstr(symbol, "oneRankReduce") == NULL)
		return -1;
	operation += strlen("FuncPreMulSumI");
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		const size_t length = strlen(codes[i].code);

		if (strncmp(operation, codes[i].code, length) == 0 && operation[length] == 'E')
			return codes[i].type;
	}
	return -1;
}

static int scale_kernel(const void *function)
{
	for (int i = 0; i < nccl.scale_count; i++)
		if (nccl.scale_kernels[i] == function)
			return nccl.scale_types[i];
	return -1;
}

static int redirect_all(struct text error)
{
	size_t redirected = 0;

	for (size_t i = 0; i < nccl.symbols.count; i++) {
		const struct emu_symbol symbol = emu_symtab_at(&nccl.symbols, i);
		const int type = scaled_type(symbol.name);
		const emu_function target = answer(symbol.name);
		int status;

		if (type >= 0 && nccl.scale_count < SCALE_KERNELS) {
			nccl.scale_kernels[nccl.scale_count] = (const void *)(nccl.base + symbol.offset);
			nccl.scale_types[nccl.scale_count++] = type;
		}
		if (target == NULL || symbol.size < EMU_REDIRECT_BYTES)
			continue;
		status = emu_redirect((void *)(nccl.base + symbol.offset), target);
		if (status != 0)
			return say(error, "%s of %s cannot be redirected: %s.", symbol.name, nccl.path,
				   strerror(-status));
		redirected++;
	}
	if (redirected < emu_runtime_answer_count / 2)
		return say(error, "%s does not contain CUDA's runtime (only %zu of its functions were found).",
			   nccl.path, redirected);
	return 0;
}

static void *find_symbol(const char *name)
{
	const struct emu_symbol symbol = emu_symtab_find(&nccl.symbols, name);

	return symbol.name == NULL ? NULL : (void *)(nccl.base + symbol.offset);
}

/* ---- opening ---- */

static int read_symbols(const char *path, struct text error)
{
	const int status = emu_symtab_open(&nccl.symbols, path);

	if (status == -ENODATA)
		return say(error,
			   "%s has been stripped, so its calls to CUDA cannot be found. The libraries of the"
			   " nvidia-nccl-cu12 and nvidia-nccl-cu13 wheels are complete.",
			   path);
	if (status == -ENOEXEC)
		return say(error, "%s is no shared library for this machine.", path);
	if (status != 0)
		return say(error, "%s cannot be read: %s.", path, strerror(-status));
	return 0;
}

static int load(const char *path, struct text error)
{
	struct link_map *map;

	nccl.handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (nccl.handle == NULL)
		return say(error, "%s", dlerror());
	if (dlinfo(nccl.handle, RTLD_DI_LINKMAP, &map) != 0)
		return say(error, "%s", dlerror());
	nccl.base = map->l_addr;
	return 0;
}

static int use_layout(struct text error)
{
	int (*get_version)(int *) = (int (*)(int *))(uintptr_t)dlsym(nccl.handle, "ncclGetVersion");
	const struct emu_layout *layout;
	const char *missing = NULL;
	int version;

	if (get_version == NULL || get_version(&nccl.version) != 0)
		return say(error, "%s is not NCCL: it has no ncclGetVersion.", nccl.path);
	version = nccl.version;
	layout = emu_layout_find(version);
	if (layout == NULL)
		return say(error, "The emulated GPU cannot run NCCL %d.%d.%d; use one of %s.", version / 10000,
			   version / 100 % 100, version % 100, emu_layout_versions());
	if (emu_layout_bind(layout, find_symbol, &missing) != 0)
		return say(error, "%s lacks the symbol %s.", nccl.path, missing);
	emu_launch_configure(layout, scale_kernel);
	emu_kernel_set_release(version);
	return 0;
}

/* After an error, path is empty if nothing was loaded, so that another attempt may follow. */
static int open_first(const char *path, struct text error)
{
	if (check_variables(error) != 0 || read_symbols(path, error) != 0)
		return -1;
	if (load(path, error) != 0) {
		emu_symtab_close(&nccl.symbols);
		return -1;
	}
	snprintf(nccl.path, sizeof(nccl.path), "%s", path);
	if (use_layout(error) != 0 || redirect_all(error) != 0)
		return -1;
	return set_variables(error);
}

void *emu_open(const char *path, char *error, size_t size)
{
	const struct text out = {error, size};
	void *handle = NULL;

	pthread_mutex_lock(&nccl.lock);
	if (nccl.path[0] == '\0') {
		if (open_first(path, out) == 0)
			handle = nccl.handle;
		else
			nccl.handle = NULL; /* a library that has been changed in part is never closed */
	} else if (nccl.handle == NULL) {
		say(out, "This process could not open %s, which stays loaded; try again in another one.", nccl.path);
	} else if (strcmp(nccl.path, path) != 0) {
		say(out, "This process has already opened %s; an emulated GPU serves one NCCL.", nccl.path);
	} else {
		handle = nccl.handle;
	}
	pthread_mutex_unlock(&nccl.lock);
	return handle;
}

const char *emu_problem(void)
{
	return emu_problem_text();
}

void *emu_stream_create(void)
{
	return emu_stream_new();
}

int emu_stream_synchronize(void *stream)
{
	return emu_stream_wait(stream);
}

int emu_stream_done(void *stream)
{
	return emu_stream_idle(stream);
}

void emu_stream_destroy(void *stream)
{
	emu_stream_drop(stream);
}
