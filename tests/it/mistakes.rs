//! Commands that are used wrongly, or on a machine without what they need: what each says, once and with the remedy.
