// The end of the process. Threads of this library still run while exit() takes libraries apart, the GPU's
// driver among them, so the service threads have to be out of it for good before that: an exit handler sees to it.
#pragma once

#include <string_view>

namespace sidestep::collective {

class ServiceThread;

namespace ending {

// The process that made something, which a child forked from it only inherits.
class Maker {
public:
    Maker();
    // This is a child of it, without its threads: what it made is not to be used, waited for or freed here.
    bool forked() const noexcept;

private:
    int process_;
};

// exit() has begun: no seat may be called any more, and none is freed, for the process does that.
bool begun() noexcept;

// There is a seat of this backend. Handlers run in the reverse order of their registration: what the
// backend's libraries registered when they started comes after this one.
void prepare_for(std::string_view backend);

// The handler waits for service threads (two seconds at most) until they are finished.
void add(ServiceThread& service);
void remove(ServiceThread& service) noexcept;

// The object is never freed: it goes with the process. Kept in a list, so that it counts as no leak. Waits for nobody.
void keep(void* object);

// Called once when it begins, before anybody is waited for; not in a child that has made no group.
using LastWords = void (*)();
void on_begin(LastWords words);

}  // namespace ending
}  // namespace sidestep::collective
