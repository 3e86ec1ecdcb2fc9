# sidestep_layer(NAME SOURCES a.cpp ... [LIBRARIES x ...])
#
# One folder of src/ or backends/ as an object library. Every layer sees the same include roots; who may
# include whom is checked by tools/check_layers.py, not by the compiler.
define_property(GLOBAL PROPERTY SIDESTEP_LAYERS BRIEF_DOCS "layers" FULL_DOCS "all layers")
function(sidestep_layer name)
    cmake_parse_arguments(LAYER "" "" "SOURCES;LIBRARIES" ${ARGN})
    add_library(sidestep_${name} OBJECT ${LAYER_SOURCES})
    sidestep_compile_together(sidestep_${name})
    target_include_directories(sidestep_${name}
        PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}
               ${CMAKE_BINARY_DIR}/generated)
    target_link_libraries(sidestep_${name} PUBLIC sidestep_fmt Threads::Threads ${LAYER_LIBRARIES})
    set_property(GLOBAL APPEND PROPERTY SIDESTEP_LAYERS sidestep_${name})
endfunction()
