//! Faults outside the network.
