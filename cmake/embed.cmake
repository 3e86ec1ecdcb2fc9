# cmake -DINPUT=file -DOUTPUT=file.cpp -DSYMBOL=ns::name -P embed.cmake: a file as a C++ array.
string(REGEX MATCH "^(.*)::([^:]+)$" _ "${SYMBOL}")
set(namespace "${CMAKE_MATCH_1}")
set(name "${CMAKE_MATCH_2}")
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE "${OUTPUT}" "namespace ${namespace} {\nextern const unsigned char ${name}[];\n"
                       "alignas(16) const unsigned char ${name}[] = {\n${bytes}};\n}\n")
