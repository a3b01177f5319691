# kvxfer_builtin_backends(<target> <name>...): generates the table of the built-in backends and
# compiles it into <target>. Backend foo_bar has its factory, MakeFooBarBackend, in
# src/backends/foo_bar/factory.h.
set(KVXFER_BACKENDS_DIR ${CMAKE_CURRENT_LIST_DIR})

# kvxfer_backend_class(<variable> <name>): FooBar of foo_bar.
function(kvxfer_backend_class variable name)
  string(REPLACE "_" ";" words ${name})
  set(class "")
  foreach(word IN LISTS words)
    string(SUBSTRING ${word} 0 1 first)
    string(SUBSTRING ${word} 1 -1 rest)
    string(TOUPPER ${first} first)
    string(APPEND class ${first}${rest})
  endforeach()
  set(${variable} ${class} PARENT_SCOPE)
endfunction()

function(kvxfer_builtin_backends target)
  set(KVXFER_BACKEND_INCLUDES "")
  set(KVXFER_BACKEND_ROWS "")
  foreach(name IN LISTS ARGN)
    kvxfer_backend_class(class ${name})
    string(APPEND KVXFER_BACKEND_INCLUDES "#include \"src/backends/${name}/factory.h\"\n")
    string(APPEND KVXFER_BACKEND_ROWS "    {\"${name}\", &Make${class}Backend},\n")
  endforeach()
  set(generated ${PROJECT_BINARY_DIR}/src/backends/builtin_backends.cc)
  configure_file(${KVXFER_BACKENDS_DIR}/builtin_table.cc.in ${generated} @ONLY)
  target_sources(${target} PRIVATE ${generated})
endfunction()

# kvxfer_plugin_entry(<variable> <name> <version>): the path of a generated source that makes the
# backend a plugin; <version> is a function of its factory.h, or empty.
function(kvxfer_plugin_entry variable name version)
  kvxfer_backend_class(class ${name})
  set(KVXFER_PLUGIN_NAME ${name})
  set(KVXFER_PLUGIN_ARGUMENTS "kvxfer::Make${class}Backend")
  if(version)
    string(APPEND KVXFER_PLUGIN_ARGUMENTS ", kvxfer::${version}")
  endif()
  set(generated ${PROJECT_BINARY_DIR}/src/backends/${name}_plugin.cc)
  configure_file(${KVXFER_BACKENDS_DIR}/plugin_entry.cc.in ${generated} @ONLY)
  set(${variable} ${generated} PARENT_SCOPE)
endfunction()
