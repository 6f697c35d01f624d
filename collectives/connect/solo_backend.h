#ifndef TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_
#define TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_

// A world of one: every operation has what it needs and copies it to where it belongs.

#include <memory>
#include <string>

#include "collectives/backend.h"

namespace tandem::collectives {

std::unique_ptr<Backend> MakeSoloBackend();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CONNECT_SOLO_BACKEND_H_
