// Everything of the public C++ API except what needs CUDA.
#pragma once

#include <sidestep/allocation.hpp>
#include <sidestep/buffer.hpp>
#include <sidestep/checkpoint.hpp>
#include <sidestep/collective.hpp>
#include <sidestep/context.hpp>
#include <sidestep/doctor.hpp>
#include <sidestep/group.hpp>
#include <sidestep/load.hpp>
#include <sidestep/memory_kind.hpp>
#include <sidestep/network.hpp>
#include <sidestep/node.hpp>
#include <sidestep/options.hpp>
#include <sidestep/peer_doctor.hpp>
#include <sidestep/place.hpp>
#include <sidestep/probe.hpp>
#include <sidestep/probe_report.hpp>
#include <sidestep/receipt.hpp>
#include <sidestep/record.hpp>
#include <sidestep/result.hpp>
#include <sidestep/route.hpp>
#include <sidestep/save.hpp>
#include <sidestep/topology.hpp>
#include <sidestep/transfer.hpp>
#include <sidestep/units.hpp>
#include <sidestep/version.hpp>
