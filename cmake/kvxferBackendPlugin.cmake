# kvxfer_add_backend_plugin(<name> SOURCES <file>... [LIBRARIES <target>...]): the plugin
# libkvxfer_backend_<name>.so, target kvxfer_backend_<name>_plugin, of sources of which one has
# KVXFER_BACKEND_PLUGIN (kvxfer/plugin.h). It shows nothing but its entry point, and brings its own
# copy of what it uses of kvxfer: a program that loads it need not show anything either.
function(kvxfer_add_backend_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  set(target kvxfer_backend_${name}_plugin)
  add_library(${target} MODULE ${arg_SOURCES})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME libkvxfer_backend_${name}
    SUFFIX ".so" CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${target} PRIVATE kvxfer::kvxfer ${arg_LIBRARIES})
  # Also what the compiler shows by itself: without this, two copies would share variables of inline
  # functions.
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  file(CONFIGURE OUTPUT ${script}
    CONTENT "{ global: kvxfer_backend_plugin; local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script,${script}")
  if(NOT KVXFER_SANITIZE)
    target_link_options(${target} PRIVATE LINKER:-z,defs)
  endif()
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()
