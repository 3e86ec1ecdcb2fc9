// Instead of backends/builtin.cpp: a machine on which nvidia-fs is loaded and NVIDIA's library is the made-up one.
#include "backends/builtin.hpp"
#include "backends/file/file_backend.hpp"
#include "backends/host/host_backend.hpp"
#include "tests/fake_cufile/stand_in.hpp"

namespace sidestep::backends {

void add_builtin(backend::Registry& registry, const Topology& topology, const base::Environment&) {
    registry.add(host::create({.threads = 2}), topology);
    registry.add(file::create({.io = base::FileIo::threads}), topology);
    registry.add(cuda::create(), topology);
    registry.add(fake_cufile::make(), topology);
}

Result<Engines> make_network_engines(const base::Environment&, const Topology&) {
    return Engines();
}

EngineRefusal why_no_engine(const base::Environment&, std::string_view) {
    return {"the machine is made up", ""};
}

}  // namespace sidestep::backends
