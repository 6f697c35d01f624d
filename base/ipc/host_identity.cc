// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace tandem::ipc {

std::string HostIdentity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // Containers of one machine share the boot id; their network namespaces differ.
  struct stat network {};
  const bool known = stat("/proc/self/ns/net", &network) == 0;
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return absl::StrCat(boot, "/", known ? network.st_ino : 0, "/", name);
}

}  // namespace tandem::ipc
