#include <sidestep/peer_doctor.hpp>

#include <fmt/format.h>

#include <iterator>

#include "base/try.hpp"
#include "diagnose/causes.hpp"
#include "diagnose/ends/ends.hpp"

namespace sidestep {

Result<Diagnosis> run_peer_doctor(const Context& context, const std::string& node,
                                  const PeerDoctorOptions& options) {
    SIDESTEP_TRY(const NodeLook look, look_at_node(context, node));
    Diagnosis diagnosis;
    diagnosis.machine = node;
    diagnosis.findings = diagnose::compare_ends(look);
    SIDESTEP_TRY(auto tried, diagnose::try_copies(context, node, options.bytes));
    std::move(tried.begin(), tried.end(), std::back_inserter(diagnosis.findings));
    diagnose::put_causes_first(diagnosis);
    diagnosis.notes.push_back(
        fmt::format("what each machine is like in itself: `sidestep doctor` here, and on {}", node));
    return diagnosis;
}

}  // namespace sidestep
