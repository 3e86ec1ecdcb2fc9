// Host memory that files are read into and written from.
#pragma once

#include <memory>

#include "backend/backend.hpp"

namespace sidestep::backends::file {

class FileJobs;

// Needs nothing to be read or written by the kernel. Memory that is used over and over, such as a staging
// ring, is pinned once with the engine instead of for each request: FileJobs decides that, and its mutex
// guards what follows.
class MemoryRegistration final : public backend::Registration {
public:
    using Registration::Registration;
    ~MemoryRegistration() override;

private:
    friend class FileJobs;

    Bytes moved_ = 0;                 // to or from it, so far
    unsigned offered_to_ = 0;         // the engine of that number
    int kept_ = -1;                   // that engine's number for it; below 0: it is not kept
    std::shared_ptr<FileJobs> jobs_;  // where it is kept
};

}  // namespace sidestep::backends::file
