// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_
#define TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_

// The backend for a world of one: every operation copies its input to its output.

#include <memory>
#include <string>

#include "collectives/backend.h"

namespace tandem::collectives {

std::unique_ptr<Backend> MakeSoloBackend();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_
