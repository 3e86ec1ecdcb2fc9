// Objects of an S3 store as files that are read.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace sidestep::backends::s3 {

// Asks nobody, and loads no library, before an object is named.
std::unique_ptr<backend::Backend> create();

}  // namespace sidestep::backends::s3
