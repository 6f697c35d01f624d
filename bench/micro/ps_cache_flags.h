// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_MICRO_PS_CACHE_FLAGS_H_
#define TANDEM_BENCH_MICRO_PS_CACHE_FLAGS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ps/client/cache/row_cache.h"

namespace tandem::ps {

// The flags of ps_cache_bench.
struct CacheBenchFlags {
  uint64_t ids = 1'000'000;
  double zipf = 1.05;
  size_t lookups = 4096 * 26;
  uint32_t dim = 16;
  int workers = 1, servers = 1;
  int steps = 300, warmup = 200;
  std::string wire = "f32";
  CacheOptions cache{.bytes = size_t{512} << 20};
};

// Parses the flags. Returns the exit code if the program must end: after --help, or after it has printed an
// error.
std::optional<int> ParseCacheBenchFlags(int argc, char** argv, CacheBenchFlags* flags);

}  // namespace tandem::ps

#endif  // TANDEM_BENCH_MICRO_PS_CACHE_FLAGS_H_
