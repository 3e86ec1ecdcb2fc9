/* The mark of what the shared library shows; C and C++. */
#ifndef SIDESTEP_API_H
#define SIDESTEP_API_H

#define SIDESTEP_API __attribute__((visibility("default")))

#endif
