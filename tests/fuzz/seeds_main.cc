// SPDX-License-Identifier: Apache-2.0
// fuzz_seeds DIRECTORY: writes the inputs that real writers make to DIRECTORY/TARGET, for scripts/fuzz.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fuzz/targets.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: fuzz_seeds DIRECTORY\n");
    return 2;
  }
  for (const tandem::fuzz::Target& target : tandem::fuzz::Targets()) {
    if (target.seeds == nullptr) continue;
    const std::filesystem::path directory = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(directory);
    const std::vector<std::string> seeds = target.seeds();
    for (size_t i = 0; i < seeds.size(); ++i) {
      std::ofstream(directory / ("seed-" + std::to_string(i)), std::ios::binary) << seeds[i];
    }
  }
  return 0;
}
