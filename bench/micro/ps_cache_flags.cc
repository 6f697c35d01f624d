// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/ps_cache_flags.h"

#include "CLI/CLI.hpp"

namespace tandem::ps {

std::optional<int> ParseCacheBenchFlags(int argc, char** argv, CacheBenchFlags* flags) {
  CLI::App app{"Bytes per pulled row with and without a cache of hot rows, on Zipf-distributed ids"};
  app.add_option("--ids", flags->ids);
  app.add_option("--zipf", flags->zipf);
  app.add_option("--lookups", flags->lookups, "of a step and worker, before repeats are taken out");
  app.add_option("--dim", flags->dim);
  app.add_option("--workers", flags->workers);
  app.add_option("--servers", flags->servers);
  app.add_option("--steps", flags->steps);
  app.add_option("--warmup", flags->warmup, "steps that are not counted");
  app.add_option("--wire", flags->wire, "of pulled rows")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "int8"}));
  app.add_option("--bytes", flags->cache.bytes, "of the cache; 0: none")->transform(CLI::AsSizeValue(false));
  app.add_option("--max-age", flags->cache.max_age);
  app.add_option("--max-uses", flags->cache.max_uses);
  app.add_option("--push-bound", flags->cache.push_bound);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  }
  return std::nullopt;
}

}  // namespace tandem::ps
