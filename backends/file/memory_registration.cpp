#include "backends/file/memory_registration.hpp"

#include "backends/file/file_jobs.hpp"

namespace sidestep::backends::file {

MemoryRegistration::~MemoryRegistration() {
    if (jobs_) jobs_->forget(*this);
}

}  // namespace sidestep::backends::file
