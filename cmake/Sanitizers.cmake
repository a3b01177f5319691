# KVXFER_SANITIZE applies to everything built here. Sanitized objects and others do not mix.
if(KVXFER_SANITIZE)
  add_compile_options(-fsanitize=${KVXFER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVXFER_SANITIZE})
  if(KVXFER_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# kvxfer_sanitize_less(<target>): for what is not the library. These checks of the undefined take
# half of the compile time, and what they would find there AddressSanitizer finds mostly too.
function(kvxfer_sanitize_less target)
  if(KVXFER_SANITIZE MATCHES "undefined")
    target_compile_options(${target} PRIVATE
      -fno-sanitize=alignment,null,object-size,pointer-overflow,returns-nonnull-attribute,vptr)
  endif()
endfunction()
