// The one copy of Asio's and Beast's non-template code (BOOST_ASIO_SEPARATE_COMPILATION,
// BOOST_BEAST_SEPARATE_COMPILATION): it compiles once, the files that use the libraries only see declarations.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
