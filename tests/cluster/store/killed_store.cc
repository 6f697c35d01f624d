// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/store/killed_store.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "cluster/store/store_server.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

// Writes its port to a file.
TEST(KilledStoreChild, DISABLED_Serves) {
  const std::string directory = std::getenv("TANDEM_TEST_STORE"), port = std::getenv("TANDEM_TEST_PORT");
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server,
                              StoreServer::Start(absl::StrCat("127.0.0.91:", port), Clock::Real(), nullptr,
                                                 {.disk = {.directory = directory, .on_failure = nullptr}}));
  std::ofstream(directory + "/port.new") << server->port();
  std::filesystem::rename(directory + "/port.new", directory + "/port");
  while (true) pause();
}

}  // namespace
}  // namespace tandem::cluster
