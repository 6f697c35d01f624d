// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/descriptor.h"

#include <unistd.h>

namespace tandem::ipc {

void Descriptor::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace tandem::ipc
