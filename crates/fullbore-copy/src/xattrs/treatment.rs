//! How a copy treats each extended attribute: one table, for listing, comparing, setting and removing.
//!
//! Some attributes duplicate a property that a copy handles separately. Others describe one machine or file system:
//! inode numbers, layouts, keyed hashes. Copied as bytes, they restore revoked rights or refer to unrelated users. Both
//! ends leave them alone, whatever the other end says.

/// How a copy treats an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// An ACL: users and groups in it are mapped by name.
    Acl,
    /// File capabilities: copied, with the user in them mapped by name.
    Capability,
    /// Copied as bytes; removed if the source does not have it.
    Copied,
    /// Copied as bytes. Kept if the source does not have it, as the destination's system sets it by itself.
    SetOnly,
    /// Not listed, compared, set or removed.
    LeftAlone,
}

use Treatment::{Acl, Capability, Copied, LeftAlone, SetOnly};

/// Patterns of names, of which the first match decides. A star at the end matches anything. The guide has the same
/// table.
const TABLE: &[(&str, Treatment)] = &[
    ("system.posix_acl_access", Acl),
    ("system.posix_acl_default", Acl),
    // File systems' own views: `nfs4_acl`, `nfs4_dacl`, `nfs4_sacl`, `richacl`, `cifs_acl`, `ntfs_acl`, `ntfs_attrib`,
    // `smb3_acl`, and `sockprotoname` of sockets.
    ("system.*", LeftAlone),
    ("user.overlay.opaque", Copied),
    ("user.overlay.whiteout", Copied),
    ("user.overlay.whiteouts", Copied),
    ("user.overlay.redirect", Copied),
    ("user.overlay.metacopy", Copied),
    ("user.overlay.protattr", Copied),
    ("user.overlay.*", LeftAlone),
    ("user.*", Copied),
    ("security.capability", Capability),
    // Samba's ACL; its names are the same on all machines of a domain.
    ("security.NTACL", Copied),
    // A hash over the inode's number with a key of this machine.
    ("security.evm", LeftAlone),
    // restorecon(8) records its last run on this machine here.
    ("security.sehash", LeftAlone),
    ("security.restorecon_last", LeftAlone),
    // Labels of security modules (`selinux`, `SMACK64`, `apparmor`), and `ima`, the hash or signature of content.
    ("security.*", SetOnly),
    // XFS: POSIX ACLs, capabilities and labels in their disk format, with user numbers; data of DMAPI.
    ("trusted.SGI_*", LeftAlone),
    // overlayfs (`Documentation/filesystems/overlayfs.rst`): these describe names of a layer, so they are content. The
    // others have file handles and counts of one file system.
    ("trusted.overlay.opaque", Copied),
    ("trusted.overlay.whiteout", Copied),
    ("trusted.overlay.whiteouts", Copied),
    ("trusted.overlay.redirect", Copied),
    ("trusted.overlay.metacopy", Copied),
    ("trusted.overlay.protattr", Copied),
    ("trusted.overlay.*", LeftAlone),
    // GlusterFS: the identity of a file in its volume, and the state of its replicas.
    ("trusted.gfid", LeftAlone),
    ("trusted.gfid2path.*", LeftAlone),
    ("trusted.pgfid.*", LeftAlone),
    ("trusted.glusterfs.*", LeftAlone),
    ("trusted.afr.*", LeftAlone),
    ("trusted.ec.*", LeftAlone),
    ("trusted.bit-rot.*", LeftAlone),
    // Lustre: the servers that have the content, and the identity of the inode.
    ("trusted.lov", LeftAlone),
    ("trusted.lma", LeftAlone),
    ("trusted.lmv", LeftAlone),
    ("trusted.link", LeftAlone),
    ("trusted.fid", LeftAlone),
    ("trusted.version", LeftAlone),
    ("trusted.som", LeftAlone),
    ("trusted.hsm", LeftAlone),
    ("trusted.dmv", LeftAlone),
    ("trusted.*", Copied),
    ("lustre.*", LeftAlone),
    ("ceph.*", LeftAlone),
    ("afs.*", LeftAlone),
    ("btrfs.*", LeftAlone),
    ("bcachefs.*", LeftAlone),
    ("bcachefs_effective.*", LeftAlone),
    ("glusterfs.*", LeftAlone),
    ("gpfs.*", LeftAlone),
    ("xfsroot.*", LeftAlone),
];

impl Treatment {
    /// The treatment of an attribute with this name.
    pub(crate) fn of(name: &[u8]) -> Treatment {
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == pattern.as_bytes(),
        };
        // User attributes of JFS (`os2.`) and HFS+ (`osx.`), and unknown ones. A destination that does not support them
        // reports that.
        TABLE.iter().find(|(pattern, _)| matches(pattern)).map_or(SetOnly, |(_, treatment)| *treatment)
    }

    /// Whether it is listed, compared and set. `acls` and `others` are the user's options.
    pub(crate) fn is_carried(self, acls: bool, others: bool) -> bool {
        match self {
            Acl => acls,
            Capability | Copied | SetOnly => others,
            LeftAlone => false,
        }
    }

    /// Whether it is removed if the source does not have it.
    pub(crate) fn is_removed(self) -> bool {
        matches!(self, Acl | Capability | Copied)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_attribute_has_the_treatment_of_its_kind() {
        let table: [(&[&str], Treatment); 5] = [
            (&["system.posix_acl_access", "system.posix_acl_default"], Acl),
            (&["security.capability"], Capability),
            (
                &[
                    "user.comment",
                    "user.overlayed",
                    "user.xdg.origin.url",
                    "user.DOSATTRIB",
                    "user.rsync.%stat",
                    "trusted.md5sum",
                    "trusted.linker",
                    "trusted.overlay.opaque",
                    "user.overlay.redirect",
                    "security.NTACL",
                ],
                Copied,
            ),
            (
                &[
                    "security.selinux",
                    "security.SMACK64",
                    "security.SMACK64EXEC",
                    "security.apparmor",
                    "security.ima",
                    "os2.comment",
                    "osx.com.apple.FinderInfo",
                    "new",
                ],
                SetOnly,
            ),
            (
                &[
                    "trusted.SGI_ACL_FILE",
                    "trusted.SGI_ACL_DEFAULT",
                    "trusted.SGI_CAP_FILE",
                    "trusted.SGI_DMI_OBJID",
                    "system.nfs4_acl",
                    "system.nfs4_dacl",
                    "system.richacl",
                    "system.cifs_acl",
                    "system.smb3_ntsd_full",
                    "system.ntfs_attrib_be",
                    "system.sockprotoname",
                    "system.posix_acl_access2",
                    "btrfs.compression",
                    "trusted.overlay.origin",
                    "trusted.overlay.upper",
                    "user.overlay.nlink",
                    "trusted.gfid",
                    "trusted.glusterfs.volume-id",
                    "trusted.afr.dirty",
                    "trusted.lov",
                    "lustre.lov",
                    "ceph.dir.layout",
                    "afs.yfs.acl",
                    "security.evm",
                ],
                LeftAlone,
            ),
        ];
        for (names, treatment) in table {
            for name in names {
                assert_eq!(Treatment::of(name.as_bytes()), treatment, "{name}");
            }
        }
    }

    #[test]
    fn every_pattern_of_the_table_is_reached() {
        for (pattern, treatment) in TABLE {
            assert_eq!(Treatment::of(pattern.replace('*', "any").as_bytes()), *treatment, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn whole_namespaces_have_one_rule(rest in "[a-zA-Z0-9_.%-]{0,30}") {
            let of = |namespace: &str| Treatment::of(format!("{namespace}{rest}").as_bytes());
            for namespace in ["trusted.SGI_", "btrfs.", "ceph.", "lustre.", "afs.", "trusted.glusterfs."] {
                prop_assert_eq!(of(namespace), LeftAlone);
            }
            prop_assert_eq!(of("user.any."), Copied);
            prop_assert!(matches!(of("system."), LeftAlone | Acl));
            // What is not carried is not removed either.
            for namespace in ["system.", "user.", "trusted.", "security.", ""] {
                let treatment = of(namespace);
                prop_assert!(treatment.is_carried(true, true) || !treatment.is_removed());
                prop_assert!(!treatment.is_carried(false, false));
            }
        }
    }
}
