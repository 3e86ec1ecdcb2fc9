// Objects of a store, s3://BUCKET/KEY: in the library files of a machine whose name no machine can have.
#pragma once

#include <string_view>

#include <sidestep/place.hpp>

namespace sidestep::base {

inline constexpr std::string_view object_store = "s3:";

inline bool is_object(const Place& place) {
    return place.is_file() && place.node() == object_store;
}

}  // namespace sidestep::base
