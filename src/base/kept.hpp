// What may never be freed, since a device or a call that hangs may still write to it.
#pragma once

#include <memory>

namespace sidestep::base {

// Holds it until the process ends, and does not destroy it then either. Any thread may call.
void keep(std::shared_ptr<const void> what);

}  // namespace sidestep::base
