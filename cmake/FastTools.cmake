# ccache and mold, where they are installed and nothing else was asked for.
find_program(KVXFER_CCACHE ccache)
if(KVXFER_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVXFER_CCACHE})
endif()

find_program(KVXFER_MOLD mold)
if(KVXFER_MOLD AND NOT CMAKE_EXE_LINKER_FLAGS MATCHES "-fuse-ld=")
  add_link_options(-fuse-ld=mold)
endif()
