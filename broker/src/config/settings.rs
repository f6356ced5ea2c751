//! The macro that makes everything from the list of settings.

/// Defines `PartialConfig` and `SETTINGS`.
///
/// ```text
/// "Group" {
///     /// Help, one sentence without a full stop.
///     ///
///     /// More for the documents.
///     name: Type => field.of.BrokerOptions { what: differs, from: the, type: s };
/// }
/// ```
///
/// A value with `=>` is kept in that field of `BrokerOptions`, whose default is the setting's. One
/// without is looked after in `resolve.rs` or `store.rs`. In braces are fields of `Setting`.
macro_rules! settings {
    ($( $group:literal { $(
        $(#[doc = $doc:literal])+
        $name:ident: $ty:ty $(=> $($place:ident).+)? $({ $($key:ident: $value:expr),+ $(,)? })?;
    )+ } )+) => {
        /// Settings, each given or not. Layers are read with [`PartialConfig::from_file`],
        /// [`PartialConfig::from_env`] and [`Setting::read`], and put together with
        /// [`PartialConfig::or`].
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct PartialConfig {
            $($(
                $(#[doc = $doc])+
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $name: Option<$ty>,
            )+)+
            /// Retry tiers of single destinations; only in the file, as `[[destination]]`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub destination: Vec<DestinationConfig>,
            /// Limits of groups; only in the file, as `[[group-limit]]`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub group_limit: Vec<GroupLimitConfig>,
            /// This broker's own token, which it shows to other brokers; only from the variable
            /// `MTIMER_PEER_TOKEN`, so that it stands in no list of processes and in no settings.
            #[serde(skip)]
            pub peer_token: PeerToken,
        }

        /// Every setting that is one value.
        pub const SETTINGS: &[Setting] = &[$($( Setting {
            $( $( $key: $value, )+ )?
            ..Setting::of::<$ty>(
                stringify!($name),
                $group,
                &[$($doc),+],
                |config, text| {
                    config.$name = Some(<$ty as SettingValue>::read(text)?);
                    Ok(())
                },
                |config| config.$name.as_ref().map(SettingValue::show),
            )
        }, )+)+];

        impl PartialConfig {
            /// What is given here, and from `lower` what is not.
            #[must_use]
            pub fn or(mut self, lower: Self) -> Self {
                $($( self.$name = self.$name.or(lower.$name); )+)+
                if self.destination.is_empty() {
                    self.destination = lower.destination;
                }
                if self.group_limit.is_empty() {
                    self.group_limit = lower.group_limit;
                }
                if self.peer_token == PeerToken::None {
                    self.peer_token = lower.peer_token;
                }
                self
            }

            /// Sets the options that settings are given for, then sets the settings to what the
            /// options are: those that are not given have the option's default.
            pub(super) fn settle(&mut self, options: &mut BrokerOptions) -> Result<(), ConfigError> {
                $($( $(
                    if let Some(given) = self.$name.take() {
                        let setting = stringify!($name);
                        let wrong = |message| ConfigError::Setting { setting, message };
                        options.$($place).+ = given.keep().map_err(wrong)?;
                    }
                    self.$name = KeptAs::kept(&options.$($place).+);
                )? )+)+
                Ok(())
            }
        }
    };
}
pub(super) use settings;
