#include "base/ipc/descriptor.h"

#include <unistd.h>

namespace tandem::ipc {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace tandem::ipc
