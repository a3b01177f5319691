# KVXFER_SANITIZE applies to everything built here. Sanitized objects and others do not mix.
if(KVXFER_SANITIZE)
  add_compile_options(-fsanitize=${KVXFER_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVXFER_SANITIZE})
  if(KVXFER_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
